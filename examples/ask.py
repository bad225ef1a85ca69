"""Ask a running Coral something through the official OpenAI client, unmodified.

python examples/ask.py "What is the capital of France?" --url http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import sys

from openai import OpenAI


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: the first model that is served")
    options = parser.parse_args()

    client = OpenAI(base_url=f"{options.url}/v1", api_key="unused", max_retries=0)
    model = options.model or next(iter(client.models.list())).id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": options.question}],
        temperature=0,
        max_tokens=128,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage:
            used = chunk.usage
            print(f"\n({used.prompt_tokens} + {used.completion_tokens} tokens)", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
