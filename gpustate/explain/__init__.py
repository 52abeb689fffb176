"""Why a node does not work: the chain of proofs from PCI to the scheduler, and the cause of a break.

``script`` holds the sh fragments that look for traces, ``clues`` reads them, the modules with causes
say what each trace means, and ``walk`` puts them together. Nothing here changes a node.
"""
