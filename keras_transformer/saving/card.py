"""Files that describe a preset, an export or an imported model."""

CARD = "MODEL_CARD.md"  # for people
SUMMARY = "summary.json"  # the same facts, for `info`
