"""The built-in executor: where the work of building a template library runs."""
