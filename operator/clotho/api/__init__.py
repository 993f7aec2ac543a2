"""The kinds of clotho.dev as typed, frozen models, and their CRDs. No I/O."""
