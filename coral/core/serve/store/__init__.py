"""What outlives the coordinator: a SQLite file in the state folder.

`database` is the file and its schema; one module per area reads and writes its own tables: `fleet`
(machines, orders, instances), `plans` (their history), `keys` (who may speak to us), `demand` (samples).
Values with a structure are JSON of their Structs.
"""
