"""Processes and devices: who is there, in which precision, how they agree, and how a preemption reaches them."""
