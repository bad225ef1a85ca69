"""OpenAI's HTTP API as types: what comes in, what goes out, how it is refused."""
