"""Diagnosis of a node: the checks from PCI to the scheduler, and the cause of the first that fails.

``script`` holds the sh fragment that collects traces, ``clues`` parses them, the modules with causes interpret
them, and ``walk`` combines all of it. Nothing here changes a node.
"""
