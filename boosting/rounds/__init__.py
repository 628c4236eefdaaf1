"""A model that all parties know and that grows by rounds of packed trees; for several strategies.

:mod:`.steps` has the messages, :mod:`.log` the coordinator's trees and its checkpoint, :mod:`.silo`
a silo's copy with its rows' margins. A silo that was away receives the rounds that it missed.
"""
