"""pyinfra's operations as queries and steps: nothing is run by pyinfra itself.

The only room besides ``remote`` that knows pyinfra. It is imported by the state that needs it, when that
state is used: pyinfra takes longer to load than a node takes to be probed.
"""
