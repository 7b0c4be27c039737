"""score on Dask: the bits of one process, on a real cluster of workers at other ISA levels, one of which is killed."""
import os
import signal
import time

import numpy as np
import pytest
from scored import model, results, rows, slowly

import graphq as gq
from graphq.scoring import score

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
da, db = pytest.importorskip("dask.array"), pytest.importorskip("dask.bag")
dd, pandas = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")

DATA = rows(1000)
PIXELS = [f"p{k}" for k in range(16)]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    path = tmp_path_factory.mktemp("artifact") / "net.graphq"
    model().save(path)
    return path


@pytest.fixture(scope="module")
def expected():
    return model()(DATA)


@pytest.fixture(scope="module")
def client():
    """A cluster of three processes; two are at lower ISA levels than this machine's best."""
    levels = ["scalar", "avx2", ""]
    workers = {k: {"cls": distributed.Nanny, "options": {"nthreads": 1, "env": {"GRAPHQ_ISA": level} if level else {}}}
               for k, level in enumerate(levels)}
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False, "port": 0, "host": "127.0.0.1"}}
    variables = dict(os.environ)
    with distributed.SpecCluster(workers, scheduler) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(3)
        yield client
    os.environ.clear()  # nannies leave OMP_NUM_THREADS=1 behind
    os.environ.update(variables)


@pytest.fixture
def here():
    """No cluster: tasks run in this thread."""
    with dask.config.set(scheduler="synchronous"):
        yield


def table():
    return pandas.DataFrame(DATA, columns=PIXELS).assign(id=[f"row {k}" for k in range(len(DATA))])


def test_array_in_one_process(here, artifact, expected):
    blocks = da.from_array(DATA, chunks=(64, 7))  # chunks of columns become whole rows
    scored = score(blocks, artifact, outputs=["y"])
    assert scored.shape == (1000, 4) and scored.dtype == np.float32
    assert np.array_equal(scored.compute(), expected["y"])
    best = score(blocks, artifact, outputs=["best"])
    assert best.shape == (1000,) and np.array_equal(best.compute(), expected["best"])


def test_frame_in_one_process(here, artifact, expected):
    frame = dd.from_pandas(table(), npartitions=7)
    scored = score(frame, artifact, columns={"x": PIXELS}, keep=["id"])
    assert list(scored.columns) == ["id", "y_0", "y_1", "y_2", "y_3", "best"]
    found = scored.compute()
    assert list(found.columns) == list(scored.columns) and dict(found.dtypes) == dict(scored.dtypes)
    assert np.array_equal(found[["y_0", "y_1", "y_2", "y_3"]], expected["y"])
    assert np.array_equal(found["best"], expected["best"])
    assert list(found["id"]) == list(table()["id"]) and list(found.index) == list(table().index)


def test_arrays_that_cannot_fit_are_refused_at_once(artifact):
    for wrong, words in ((DATA[:, :7], "got rows of an array of shape"), (DATA.ravel(), "rows of an array of shape"),
                         (DATA.astype(np.float64), "got dtype float64: use astype")):
        with pytest.raises(gq.InputError, match=words):
            score(da.from_array(wrong), artifact, outputs=["y"])


def test_numbers_of_tables_are_converted(here, artifact, expected):
    frame = dd.from_pandas(table().astype(dict.fromkeys(PIXELS, np.float64)), npartitions=3)
    found = score(frame, gq.Predictor(artifact, convert=True), columns={"x": PIXELS}, keep=["id"]).compute()
    assert np.array_equal(found[["y_0", "y_1", "y_2", "y_3"]], expected["y"])
    blocks = da.from_array(DATA.astype(np.int64), chunks=(300, 16))
    assert np.array_equal(score(blocks, gq.Predictor(artifact, convert=True), outputs=["y"]).compute(), expected["y"])


def test_a_graph_is_compiled_and_said(here, caplog, expected):
    scored = score(da.from_array(DATA, chunks=(500, 16)), model().source, outputs=["y"])
    assert [r for r in caplog.records if "a graph is compiled, to <compiled graph net" in r.getMessage()]
    assert np.array_equal(scored.compute(), expected["y"])


def test_empty_partitions(here, artifact):
    frame = dd.from_pandas(table(), npartitions=3)
    found = score(frame[frame["id"] == "row 5"], artifact, columns={"x": PIXELS}, keep=["id"]).compute()
    assert len(found) == 1 and list(found.columns) == ["id", "y_0", "y_1", "y_2", "y_3", "best"]
    assert score(db.from_sequence([], npartitions=1), artifact).compute() == []


def test_bag_in_one_process(here, artifact, expected):
    bag = db.from_sequence([{"picture": row, "id": k} for k, row in enumerate(DATA)], npartitions=5)
    found = score(bag, artifact, columns={"x": "picture"}, keep=["id"]).compute()
    assert [row["id"] for row in found] == list(range(1000)) and set(found[0]) == {"id", "y", "best"}
    assert np.array_equal(np.stack([row["y"] for row in found]), expected["y"])


def test_a_bag_of_rows_of_different_lengths(here):
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(None, None))), name="y")
    rows = [{"x": np.arange(-2, n, dtype=np.float32)} for n in (3, 40, 0, 3)]
    bag = db.from_sequence(rows, npartitions=1)
    found = score(bag, gq.Predictor(gq.compile(g, threads=1), pad="buckets"), keep=[]).compute()
    assert all(np.array_equal(out["y"], np.maximum(row["x"], 0)) for out, row in zip(found, rows, strict=True))


def test_a_predictor_says_how_rows_run(here, artifact, expected):
    predictor = gq.Predictor(artifact, threads=1, batch=10, pad_to=10)
    scored = score(da.from_array(DATA, chunks=(33, 16)), predictor, outputs=["y"])
    assert np.array_equal(scored.compute(), expected["y"])


@pytest.mark.parametrize("options, words", [
    ({"outputs": ["z"]}, "outputs: the model has 'y' and 'best', not 'z'"),
    ({"columns": {"z": ["a"]}}, "columns: the model has 'x', not 'z'"),
    ({"columns": {"x": ["p0", "q"]}}, "input 'x': there is no column 'q'"),
    ({}, "input 'x': there is no column 'x'"),
    ({"columns": {"x": PIXELS}, "keep": ["name"]}, "keep: there is no column 'name'"),
    ({"columns": {"x": PIXELS}, "keep": "id"}, "keep takes a list of names"),
    ({"columns": {"x": []}}, "input 'x' needs at least one column"),
    ({"columns": {"x": PIXELS[:7]}}, r"columns: input 'x' is u8\[\?,16\], got 7 columns"),
    ({"columns": ["x"]}, "columns takes a mapping"),
])
def test_wrong_names_of_a_frame(artifact, options, words):
    with pytest.raises(gq.InputError, match=words):
        score(dd.from_pandas(table(), npartitions=2), artifact, **options)


def test_an_output_and_a_column_of_one_name(artifact):
    frame = dd.from_pandas(table().rename(columns={"id": "best"}), npartitions=2)
    with pytest.raises(gq.InputError, match="output 'best' has the name of a column"):
        score(frame, artifact, columns={"x": PIXELS})


def test_columns_of_one_name(artifact):
    frame = dd.from_pandas(table().rename(columns={"id": "y_0"}), npartitions=2)
    with pytest.raises(gq.InputError, match="two columns would be called 'y_0'"):
        score(frame, artifact, columns={"x": PIXELS})


def test_rows_of_a_bag(here, artifact):
    some = {"x": DATA[0], "id": 1}
    for wrong, words in (({"id": 2}, "no column 'x'"), ({"x": DATA[0][:3]}, "column 'x'.*same shape"), (7, "dicts")):
        with pytest.raises(gq.InputError, match=words):
            score(db.from_sequence([some, wrong], npartitions=1), artifact).compute()
    found = score(db.from_sequence([some, {"x": DATA[1], "name": "b"}], npartitions=1), artifact).compute()
    assert [set(row) for row in found] == [{"x", "id", "y", "best"}, {"x", "name", "y", "best"}]


def test_blocks_without_rows_of_a_model_whose_rows_have_any_length(here, tmp_path):
    g = gq.Graph()
    g.output(g.softmax(g.input("x", dtype="f32", shape=(None, None)), axis=-1))
    gq.compile(g).save(tmp_path / "m")
    data = np.ones((10, 4), np.float32)
    found = score(da.from_array(data, chunks=((4, 0, 6), 4)), tmp_path / "m").compute()
    assert np.array_equal(found, data / 4)


def test_an_array_without_rows(artifact):
    with pytest.raises(gq.InputError, match="no dimensions"):
        score(da.from_array(np.float32(1)), artifact, outputs=["y"])


def test_arrays_have_one_input_and_one_output(artifact):
    with pytest.raises(gq.InputError, match="one input and output"):
        score(da.from_array(DATA), artifact)


def test_other_datasets(artifact):
    with pytest.raises(gq.GraphqError, match="dask array, dataframe or bag, or a Ray dataset"):
        score([1, 2], artifact)


def test_wrong_data_is_the_models_error(here, artifact):
    with pytest.raises(gq.InputError, match="x"):
        score(da.from_array(DATA.astype(np.float32), chunks=(64, 16)), artifact, outputs=["y"]).compute()


def test_workers_at_other_levels_give_the_same_bits(client, artifact, expected):
    scored = score(da.from_array(DATA, chunks=(50, 16)), artifact, outputs=["y"])
    for worker in client.scheduler_info()["workers"]:  # all of it on each
        found = client.compute(scored, workers=[worker], allow_other_workers=False).result(timeout=300)
        assert np.array_equal(found, expected["y"])
    levels = client.run(os.getenv, "GRAPHQ_ISA").values()
    assert sorted(level or "" for level in levels) == sorted(["avx2", "scalar", os.environ.get("GRAPHQ_ISA", "")])


def test_a_worker_is_killed_in_the_midst(client, artifact, expected):
    bag = db.from_sequence([{"x": row, "id": k} for k, row in enumerate(DATA)], npartitions=40).map_partitions(slowly)
    processes = client.run(os.getpid)
    future = client.compute(score(bag, artifact, keep=["id"]))
    end = time.monotonic() + 120
    while not any(client.run(results).values()):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert not future.done()
    os.kill(next(iter(processes.values())), signal.SIGKILL)
    found = future.result(timeout=300)
    assert [row["id"] for row in found] == list(range(1000))
    assert np.array_equal(np.stack([row["y"] for row in found]), expected["y"])
    assert np.array_equal([row["best"] for row in found], expected["best"])
