"""pyinfra's operations as queries and steps; pyinfra itself runs nothing.

Only this package and ``remote`` import pyinfra. It is imported when a policy has a state that needs it: loading
pyinfra takes longer than probing a node.
"""
