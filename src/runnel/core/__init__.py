"""The words of runnel: batches, records, contracts, configuration, randomness, errors.

Every other package imports `core`, and `core` imports nothing of ours. Two packages that must not know each other (say
`flow` and `agents`) meet here, in a protocol.
"""
