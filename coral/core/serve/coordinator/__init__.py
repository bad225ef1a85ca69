"""The coordinator process: front door, router, controller."""
