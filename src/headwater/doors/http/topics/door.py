"""The door for topics, put together: each family of routes, and what they share.

Owns nothing but its parts, which whoever adds a family reaches here.
"""

from __future__ import annotations

from headwater.config import Settings
from headwater.doors.http.access import Access
from headwater.doors.http.topics.config import Configs
from headwater.doors.http.topics.deletes import Deletes
from headwater.doors.http.topics.diff import Diffs
from headwater.doors.http.topics.queues import QueueCalls
from headwater.doors.http.topics.records import Records, Writes
from headwater.doors.http.topics.routes import TopicRoutes, Where
from headwater.doors.http.topics.sockets import TopicSockets
from headwater.doors.http.topics.tails import TopicTails
from headwater.doors.http.topics.topics import Topics
from headwater.doors.http.topics.watchers import Deliveries, Watchers
from headwater.doors.http.topics.work import Work
from headwater.doors.http.topics.writing import Writing
from headwater.doors.http.websocket import WebSockets
from headwater.engine.engine import Engine
from headwater.topics.priorities import Priorities
from headwater.topics.queues import Queues


class TopicDoor:
    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        in_cluster: bool,
        where: Where,
        deliveries: Deliveries,
        priorities: Priorities,
        access: Access | None = None,
    ) -> None:
        """`where` calls something in the process where a stream lives (see `Routes.where`)."""
        self._engine = engine
        self._settings = settings
        self.routes = TopicRoutes(settings.stream_name_bytes_max, where, access)
        self.configs = Configs(in_cluster, settings.content_type_bytes_max, settings.stream_name_bytes_max)
        self.watchers = Watchers(engine, deliveries, priorities)
        self.writes = Writes(engine, settings)
        self.topics = Topics(engine, self.configs)
        self.records = Records(engine, self.writes)
        self.diffs = Diffs(engine, settings, self.watchers)
        self.tails = TopicTails(engine, settings, self.watchers)
        self.deletes = Deletes(engine)
        for family in (self.topics, self.records, self.diffs, self.tails, self.deletes):
            family.register(self.routes)

    def serve_sockets(self, sockets: WebSockets) -> TopicSockets:
        """Serves WebSockets too."""
        found = TopicSockets(self._engine, self._settings, self.watchers, Writing(self._engine, self.records), sockets)
        found.register(self.routes)
        return found

    def serve_queues(self, queues: Queues) -> None:
        """Topics that are queues are served as such from now on."""
        QueueCalls(self._engine, queues).register(self.routes, self.records)
        Work(self._engine, self._settings, queues).register(self.routes)
        self.topics.more_state, self.topics.on_configured = queues.shown, queues.configured
