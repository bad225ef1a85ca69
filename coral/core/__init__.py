"""What Coral does, one folder per command. Layers are kept by import-linter (see pyproject.toml)."""
