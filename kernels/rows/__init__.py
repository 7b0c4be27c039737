"""The family of operations along rows: softmax, layer norm and the like."""
