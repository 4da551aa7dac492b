"""Running programs that nobody trusts: `sandbox.py` the door, everything else behind it. docs/sandbox.md says what
holds them.

Two sides. *Outside*, a trusted process owns a `Sandbox` and judges what comes out of it. *Inside*, `warden.py` is a
small process that confines itself (`confine.py`), keeps a warm interpreter, and forks one *inmate* for each run:
`inmate.py` gives up every right it has, `harness.py` runs the program. What a program should have answered never goes
inside, so nothing in there is worth stealing. Standard library only.
"""
