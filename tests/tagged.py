"""Two sentences with tags in the format of CoNLL-2003."""

FILE = """EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
calls NNS I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
Paris NNP B-NP B-PER
"""
