from __future__ import annotations

from coral.core.config.serving import ServeSection
from coral.core.serve.frontdoor.options import FrontDoorOptions


def test_what_the_config_says_reaches_the_front_door() -> None:
    said = ServeSection.model_validate(
        {
            "request_timeout": "7s",
            "client_timeout": "1500ms",
            "max_body": "1MiB",
            "max_sequences": 3,
            "tokenizer_threads": 5,
        }
    )
    options = FrontDoorOptions.of(said)
    assert (options.request_timeout_s, options.client_timeout_s) == (7.0, 1.5)
    assert (options.max_body_bytes, options.max_sequences, options.tokenizer_threads) == (1 << 20, 3, 5)


def test_both_have_the_same_defaults() -> None:
    assert FrontDoorOptions.of(ServeSection()) == FrontDoorOptions()
