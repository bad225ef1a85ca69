"""KV that goes from a node of one instance to nodes of another: `sending`, `receiving`, `intake`."""
