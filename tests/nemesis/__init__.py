"""A storm over a whole world of real processes, and a judge of what its clients were told.

    python -m tests.nemesis --minutes 10 --seed 1

Two brokers, clients that send, syphons, clients that receive. A round plays random faults of the whole table and stops
and kills processes; then everything is healed, and nothing that was acknowledged may be missing, altered or elsewhere.
"""
