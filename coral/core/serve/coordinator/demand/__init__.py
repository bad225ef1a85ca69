"""Demand while serving: measured, remembered, forecast, and given to the planner."""
