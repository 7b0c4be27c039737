"""Plans: tables of steps over one arena, the code that builds them, and the runtime that runs them."""
