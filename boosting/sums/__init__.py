"""Secure sums: the coordinator learns the sum of the silos' vectors and nothing else of them.

A sub-protocol for strategies. The silo half calls :meth:`.silo.SiloSums.sum`, the coordinator half
:meth:`.coordinator.CoordinatorSums.sum` and then :meth:`~.coordinator.CoordinatorSums.answer` with
the strategy's reply. Both name the same :class:`.steps.SumSteps`, place, ring and ``whole``.
Without secure sums (``secure = false``) the same calls carry plain vectors.

| exchange | when | silo offers | silo gets |
|---|---|---|---|
| ``sum-keys`` | at each setup | :class:`.steps.KeyOffer`: two keys, signed | all of the group |
| ``NAME-shares`` | every ``batch`` sums | :class:`.steps.SealedShares` for its peers | its own |
| ``NAME-masked`` | each sum | :class:`.steps.MaskedVector`, full set signed | a set of silos |
| ``NAME-agree`` | a silo was lost | :class:`.steps.SetSignature` on the rest | a set, signed |
| ``NAME-seeds`` | a silo was lost | :class:`.steps.PairSeeds` with the lost | a set |
| ``NAME-unmask`` | each sum | :class:`.steps.Unmasking`: self masks' shares | strategy's reply |

Inside a tree, over the set of the sum that opened it, a sum is the one exchange ``NAME-single``
without self mask: its masks come from roots that the vault gave once, for that set. Without all of
the set it stays masked. With ``dropout_recovery = false`` every sum is that exchange. Without
secure sums it is the one exchange ``NAME-plain``. Both end with the strategy's reply.

Rules for strategies:

* :meth:`~.silo.SiloSums.setup` comes first and fixes who takes part. Silos that were lost stay out
  until the next setup, which silos that are back join.
* Places of one :class:`.steps.SumSteps` only grow within an attempt.
* ``opens_tree=True`` says that sums inside a tree follow; these have ``whole=True`` and are over
  the set of the first. A silo that is lost inside a tree leaves that sum closed (``total is
  None``), and every silo still gets the strategy's reply.
* ``state`` is the digest of all that a vector is computed from beside the silo's rows
  (:mod:`.view`). Masks of silos with different views do not cancel, so a coordinator that asks one
  silo another question opens noise; an honest one compares the tags and names who differs.
* A sum is over a union of whole groups (:mod:`.groups`). Silos refuse others
  (:class:`~hedgerow.boosting.errors.SumRefused`), across restarts and jobs too. Where a job and all
  policies allow close sets, the same data is still never summed again over one that tells fewer
  than three silos apart. Silos of an incomplete group are let go at a setup, and wait.
* The coordinator half stores what it decided from a total before it answers.

Reveals: to the coordinator the totals, who took part and when. A silo's vector stays hidden unless
the coordinator colludes with enough silos to break the threshold, or with all but one. The
coordinator chooses who is in a group, so ``least_silos`` bounds how few silos a vector hides
among. With ``blind_coordinator`` the silos learn the totals and the coordinator does not. With
``dropout_recovery = false`` nothing is shared and a lost silo ends the job. Silos learn who takes
part. The argument is in docs/threat-model.md.

References
----------
Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017.
One change: no long-term key is shared; survivors reveal one sum's pair seeds with the lost silos.
"""
