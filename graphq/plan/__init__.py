"""Plans: tables of steps over one arena, what builds them, and running them."""
