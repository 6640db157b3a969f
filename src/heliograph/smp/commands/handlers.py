"""The handler of each command."""

from collections.abc import Callable
from typing import Any

from heliograph.smp.commands.forwarded import ForwardedCommands
from heliograph.smp.commands.links import LinkCommands
from heliograph.smp.commands.messages import MessageCommands
from heliograph.smp.commands.notifiers import NotifierCommands
from heliograph.smp.commands.proxy import ProxyCommands
from heliograph.smp.commands.queues import QueueCommands
from heliograph.smp.commands.service_subscriptions import ServiceSubscriptions
from heliograph.smp.commands.services import ServiceCommands
from heliograph.smp.context import CommandContext
from heliograph.smp.relays import Relays
from heliograph.tasks import TaskScope
from heliograph.wire import smp
from heliograph.wire.smp import SmpCommand, SmpResponse

Handler = Callable[[Any, Any, Any], SmpResponse | None]
"""Returns the answer, or None if it follows once the changes are durable.

The arguments are the sender, the request and the queue that its command names, or None; each
handler declares which of them it accepts.
"""


class CommandHandlers:
    def __init__(
        self,
        context: CommandContext,
        forwarded: ForwardedCommands,
        relays: Relays,
        tasks: TaskScope,
    ) -> None:
        subscriptions = ServiceSubscriptions(context)
        self.messages = messages = MessageCommands(context, subscriptions)
        notifiers = NotifierCommands(context, subscriptions)
        self.queues = queues = QueueCommands(context, messages, notifiers, subscriptions)
        links = LinkCommands(context, queues)
        proxy = ProxyCommands(context, relays, tasks)
        services = ServiceCommands(context, subscriptions, messages, tasks)
        self.by_command: dict[type[SmpCommand], Handler] = {
            smp.PING: notifiers.ping,
            smp.NEW: queues.new,
            smp.KEY: queues.key,
            smp.SKEY: queues.key,
            smp.OFF: queues.off,
            smp.DEL: queues.delete,
            smp.QUE: queues.que,
            smp.SUB: messages.sub,
            smp.GET: messages.get,
            smp.ACK: messages.ack,
            smp.SEND: messages.send,
            smp.NKEY: notifiers.nkey,
            smp.NDEL: notifiers.ndel,
            smp.NSUB: notifiers.nsub,
            smp.NSUBS: services.nsubs,
            smp.SUBS: services.subs,
            smp.RKEY: queues.rkey,
            smp.LSET: links.lset,
            smp.LDEL: links.ldel,
            smp.LKEY: links.lkey,
            smp.LGET: links.lget,
            smp.PRXY: proxy.prxy,
            smp.PFWD: proxy.pfwd,
            smp.RFWD: forwarded.rfwd,
        }
