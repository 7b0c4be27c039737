"""Plans: tables of steps over one arena, the builder of plans, and the runtime that runs them."""
