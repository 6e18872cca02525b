"""`make doctor` and `stack.py check`: is this machine, or this stack, ready for a run?"""
