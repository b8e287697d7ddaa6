"""Lets Ray Serve route by our router.

Serve copies this module and its variables into the processes that route, so all state is elsewhere.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from .ticket import Ticket, note_replicas

ADDRESS = "arbora_address"
"""`ModelReplica.record_replica_metadata` gives the replica's address by this key."""


class PrefixRequestRouter(RequestRouter):
    """Has Arbora's router choose a request's replica: the one with the longest cached prefix of its prompt,
    among those that would begin it soon (`frontend.core.replica.router`)."""

    def initialize_state(self, **named: Any) -> None:
        """Called by Serve with `model`, the name of the deployment's model."""
        self._model: str = named["model"]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        addresses = {each.replica_id.unique_id: each.replica_metadata[ADDRESS] for each in replicas}
        note_replicas(self._model, addresses)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        ticket = _find_ticket(pending_request)
        if ticket is None or ticket.chooser is None:
            return [candidate_replicas]
        by_id = {each.replica_id.unique_id: each for each in candidate_replicas}
        chosen = await ticket.chooser.choose(list(by_id))
        return [] if chosen is None else [[by_id[chosen]]]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: object
    ) -> None:
        ticket = _find_ticket(pending_request)
        if ticket is not None and ticket.chooser is not None:
            ticket.chooser.route(replica_id.unique_id)


def _find_ticket(pending: PendingRequest | None) -> Ticket | None:
    """The ticket of a call of `ModelReplica.hold`; None for other calls."""
    first = pending.args[0] if pending is not None and pending.args else None
    return first if isinstance(first, Ticket) else None
