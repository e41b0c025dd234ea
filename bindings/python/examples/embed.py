"""Embeds two texts and prints their cosine: python embed.py [MODEL]"""

import sys

import triad

model = triad.Model(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
one = model.embed("A cat sleeps on the sofa.")
other = model.embed("A kitten naps on the couch.")
print(f"{one @ other:.3f}")
