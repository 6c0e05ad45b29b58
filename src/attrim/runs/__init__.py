"""Run folders, results and artefacts: what is written is wholly there or not at all."""
