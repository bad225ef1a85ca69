"""How machines of others' networks join: the deployment's keys, join tokens, who has joined."""
