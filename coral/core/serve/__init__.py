"""The live system: one folder per process (coordinator with its front door, planner, agent,
scheduler of an instance, worker of a node) and `net`, which they share."""
