"""Between text and token ids: tokenizer, chat template, detokenizing, stop strings."""
