"""Hypothesis strategies for the values of the wire, shared by the tests of every layer."""

from typing import Any

from hypothesis import strategies as st

from heliograph.wire import errors, handshakes, ntf, smp
from heliograph.wire.addresses import (
    Host,
    HostKind,
    Scheme,
    ServerAddress,
    SMPQueueNtf,
    decode_host,
)
from heliograph.wire.keys import KEY_SIZE, PKCS8_PREFIX, SPKI_PREFIX, Algorithm
from heliograph.wire.ntf import push, tokens
from heliograph.wire.smp import fields, messages
from heliograph.wire.transmissions import Session
from heliograph.wire.versions import VersionRange

NTF_VERSION_NUMBERS = range(1, 4)
SMP_VERSION_NUMBERS = range(6, 20)

# Primitives

shorts = st.one_of(st.binary(max_size=40), st.binary(min_size=240, max_size=255))
larges = st.binary(max_size=600)
bodies = st.binary(max_size=600)
ids = st.one_of(st.binary(min_size=24, max_size=24), st.binary(min_size=1, max_size=255))
i64s = st.integers(-(2**63), 2**63 - 1)
times = st.integers(0, 2**40)
u16s = st.integers(0, 65535)
texts = st.text(st.characters(codec="utf-8"), max_size=60)
ntf_versions = st.sampled_from(NTF_VERSION_NUMBERS)
smp_versions = st.sampled_from(SMP_VERSION_NUMBERS)
version_ranges = st.tuples(u16s, u16s).map(lambda pair: VersionRange(min(pair), max(pair)))

# Keys


def public_keys(*algorithms: Algorithm) -> st.SearchStrategy[bytes]:
    return st.one_of(
        [
            st.binary(min_size=KEY_SIZE[algorithm], max_size=KEY_SIZE[algorithm]).map(
                SPKI_PREFIX[algorithm].__add__
            )
            for algorithm in algorithms or tuple(Algorithm)
        ]
    )


x25519_keys = public_keys(Algorithm.X25519)
auth_keys = public_keys()
private_keys = st.one_of(
    [
        st.binary(min_size=KEY_SIZE[algorithm], max_size=KEY_SIZE[algorithm]).map(
            PKCS8_PREFIX[algorithm].__add__
        )
        for algorithm in Algorithm
    ]
)

# Addresses

_labels = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12)
ipv4_hosts = st.ip_addresses(v=4).map(lambda ip: Host(HostKind.IPV4, str(ip)))
ipv6_hosts = st.ip_addresses(v=6).map(lambda ip: decode_host(f"[{ip}]"))
onion_hosts = st.text("abcdefghijklmnopqrstuvwxyz234567", max_size=56).map(
    lambda name: Host(HostKind.ONION, f"{name}.onion")
)
domain_hosts = st.lists(_labels, min_size=1, max_size=4).map(
    lambda labels: Host(HostKind.DOMAIN, ".".join(["h" + labels[0], *labels[1:], "example"]))
)
hosts = st.one_of(ipv4_hosts, ipv6_hosts, onion_hosts, domain_hosts)
ports = st.one_of(st.just(""), st.integers(1, 65535).map(str))
fingerprints = st.binary(min_size=32, max_size=32)
passwords = st.text("abcXYZ019!#$%&'()*+,-.;<=>?[]^_{|}~é", min_size=1, max_size=30)


def server_addresses(
    scheme: st.SearchStrategy[Scheme], password: st.SearchStrategy[str | None]
) -> st.SearchStrategy[ServerAddress]:
    return st.builds(
        ServerAddress,
        scheme,
        st.lists(hosts, min_size=1, max_size=4).map(tuple),
        ports,
        fingerprints,
        password,
    )


addresses = server_addresses(st.sampled_from(Scheme), st.none() | passwords)
smp_servers = server_addresses(st.just(Scheme.SMP), st.none())
queues = st.builds(SMPQueueNtf, smp_servers, ids)


def _text_form(queue: SMPQueueNtf) -> bool:
    """Text has no brackets, so a port after an IPv6 address reads as its last group."""
    return not queue.server.port or queue.server.hosts[-1].kind is not HostKind.IPV6


text_queues = queues.filter(_text_form)

# Tokens and statuses

apns_providers = st.sampled_from([p for p in tokens.PushProvider if p.name.startswith("APNS")])
hex_tokens = st.binary(max_size=64).map(lambda data: data.hex().encode())
apns_tokens = st.builds(tokens.APNSDeviceToken, apns_providers, hex_tokens)
wp_tokens = st.builds(
    tokens.WPDeviceToken,
    domain_hosts.map(str),
    st.one_of(st.just(""), st.integers(1, 65535).map(str)),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40).map("/".__add__),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=64, max_size=64).map(b"\x04".__add__),
)
device_tokens = st.one_of(apns_tokens, wp_tokens)
token_statuses = st.sampled_from(tokens.TokenStatus)
_plain_states = [s for s in tokens.SubscriptionState if s is not tokens.SubscriptionState.ERR]
subscription_statuses = st.one_of(
    st.builds(tokens.NtfSubStatus, st.sampled_from(_plain_states)),
    st.builds(tokens.NtfSubStatus, st.just(tokens.SubscriptionState.ERR), st.binary(max_size=40)),
)

# Errors

error_codes = st.sampled_from(errors.ErrorCode)
notices = st.builds(errors.ClientNotice, st.none() | i64s)
blocked = st.builds(errors.BLOCKED, st.sampled_from(errors.BlockingReason), st.none() | notices)
stores = st.builds(errors.STORE, texts)
transport_errors = st.sampled_from(errors.TransportError)
_error_texts = st.binary(max_size=255).map(lambda data: data.decode("utf-8", "surrogateescape"))
_network_details = st.one_of(
    st.none(),
    st.sampled_from(["UNKNOWNCA", "FAILED", "TIMEOUT"]),
    st.tuples(st.sampled_from(["CONNECT", "TLS", "SUBSCRIBE"]), _error_texts).map(" ".join),
)
broker_errors = st.one_of(
    st.builds(errors.BrokerError, st.sampled_from(["TIMEOUT", "HOST", "NO_SERVICE"])),
    st.builds(errors.BrokerError, st.sampled_from(["RESPONSE", "UNEXPECTED"]), _error_texts),
    st.builds(errors.BrokerError, st.just("TRANSPORT"), transport_errors),
    st.builds(errors.BrokerError, st.just("NETWORK"), _network_details),
)
_plain_proxy = st.builds(
    errors.PROXY, st.one_of(st.sampled_from(errors.ProxyFailure), broker_errors)
)
_plain_errors: st.SearchStrategy[errors.ErrorType] = st.one_of(error_codes, blocked, stores)
proxies = st.one_of(
    _plain_proxy,
    st.builds(
        errors.PROXY, st.builds(errors.ProxyProtocolError, st.one_of(_plain_errors, _plain_proxy))
    ),
)
error_types: st.SearchStrategy[errors.ErrorType] = st.one_of(_plain_errors, proxies)

# Fields

flags = st.builds(fields.MsgFlags, st.booleans())
messaging_links = st.builds(fields.QueueLink, st.just(b""), shorts, larges, larges)
contact_links = st.builds(fields.QueueLink, shorts, shorts, larges, larges)
queue_requests = st.one_of(
    st.builds(
        fields.QueueReqData, st.just(fields.QueueMode.MESSAGING), st.none() | messaging_links
    ),
    st.builds(fields.QueueReqData, st.just(fields.QueueMode.CONTACT), st.none() | contact_links),
)
password_bytes = passwords.map(str.encode)
new_ntf_creds = st.builds(fields.NewNtfCreds, auth_keys, x25519_keys)
server_ntf_creds = st.builds(fields.ServerNtfCreds, ids, x25519_keys)
_info_texts = st.dictionaries(st.sampled_from(["msgId", "msgTs", "msgType"]), texts)
queue_infos = st.builds(
    fields.QueueInfo,
    st.booleans(),
    st.booleans(),
    i64s,
    st.none() | _info_texts,
    st.none() | _info_texts,
)

# Messages of both protocols, by type

NTF_COMMANDS: dict[type[Any], st.SearchStrategy[Any]] = {
    ntf.TNEW: st.builds(ntf.TNEW, device_tokens, auth_keys, x25519_keys),
    ntf.TVFY: st.builds(ntf.TVFY, shorts),
    ntf.TCHK: st.just(ntf.TCHK()),
    ntf.TRPL: st.builds(ntf.TRPL, device_tokens),
    ntf.TDEL: st.just(ntf.TDEL()),
    ntf.TCRN: st.builds(ntf.TCRN, u16s),
    ntf.SNEW: st.builds(ntf.SNEW, ids, queues, private_keys),
    ntf.SCHK: st.just(ntf.SCHK()),
    ntf.SDEL: st.just(ntf.SDEL()),
    ntf.PING: st.just(ntf.PING()),
}
NTF_RESPONSES: dict[type[Any], st.SearchStrategy[Any]] = {
    ntf.IDTKN: st.builds(ntf.IDTKN, ids, x25519_keys),
    ntf.IDSUB: st.builds(ntf.IDSUB, ids),
    ntf.OK: st.just(ntf.OK()),
    ntf.ERR: st.builds(ntf.ERR, error_types),
    ntf.TKN: st.builds(ntf.TKN, token_statuses),
    ntf.SUB: st.builds(ntf.SUB, subscription_statuses),
    ntf.PONG: st.just(ntf.PONG()),
}
chains = st.lists(larges, min_size=1, max_size=4).map(tuple)
cert_chain_keys = st.builds(handshakes.CertChainPubKey, chains, larges)

SMP_COMMANDS: dict[type[Any], st.SearchStrategy[Any]] = {
    smp.NEW: st.builds(
        smp.NEW,
        *(auth_keys, x25519_keys, st.none() | password_bytes),
        *(st.sampled_from(fields.SubscriptionMode), st.none() | queue_requests),
        st.none() | new_ntf_creds,
    ),
    smp.SUB: st.just(smp.SUB()),
    smp.SUBS: st.builds(smp.SUBS, i64s, st.binary(min_size=16, max_size=16)),
    smp.KEY: st.builds(smp.KEY, auth_keys),
    smp.RKEY: st.builds(smp.RKEY, st.lists(auth_keys, min_size=1, max_size=5).map(tuple)),
    smp.LSET: st.builds(smp.LSET, ids, larges, larges),
    smp.LDEL: st.just(smp.LDEL()),
    smp.LKEY: st.builds(smp.LKEY, auth_keys),
    smp.LGET: st.just(smp.LGET()),
    smp.PRXY: st.builds(smp.PRXY, smp_servers, st.none() | password_bytes),
    smp.PFWD: st.builds(smp.PFWD, st.integers(0, 65535), x25519_keys, bodies),
    smp.RFWD: st.builds(smp.RFWD, bodies),
    smp.NKEY: st.builds(smp.NKEY, auth_keys, x25519_keys),
    smp.NDEL: st.just(smp.NDEL()),
    smp.GET: st.just(smp.GET()),
    smp.ACK: st.builds(smp.ACK, ids),
    smp.OFF: st.just(smp.OFF()),
    smp.DEL: st.just(smp.DEL()),
    smp.QUE: st.just(smp.QUE()),
    smp.SKEY: st.builds(smp.SKEY, auth_keys),
    smp.SEND: st.builds(smp.SEND, flags, bodies),
    smp.NSUB: st.just(smp.NSUB()),
    smp.NSUBS: st.builds(smp.NSUBS, i64s, st.binary(min_size=16, max_size=16)),
    smp.PING: st.just(smp.PING()),
}
SMP_RESPONSES: dict[type[Any], st.SearchStrategy[Any]] = {
    smp.IDS: st.builds(
        smp.IDS,
        *(ids, ids, x25519_keys, st.none() | st.sampled_from(fields.QueueMode)),
        *(st.none() | ids, st.none() | ids, st.none() | server_ntf_creds),
    ),
    smp.LNK: st.builds(smp.LNK, ids, larges, larges),
    smp.PKEY: st.builds(smp.PKEY, ids, version_ranges, cert_chain_keys),
    smp.PRES: st.builds(smp.PRES, bodies),
    smp.RRES: st.builds(smp.RRES, bodies),
    smp.SOK: st.builds(smp.SOK, st.none() | ids),
    smp.SOKS: st.builds(smp.SOKS, i64s, st.binary(min_size=16, max_size=16)),
    smp.MSG: st.builds(smp.MSG, ids, bodies),
    smp.ALLS: st.just(smp.ALLS()),
    smp.NID: st.builds(smp.NID, ids, x25519_keys),
    smp.NMSG: st.builds(smp.NMSG, st.binary(min_size=24, max_size=24), shorts),
    smp.END: st.just(smp.END()),
    smp.ENDS: st.builds(smp.ENDS, i64s, st.binary(min_size=16, max_size=16)),
    smp.DELD: st.just(smp.DELD()),
    smp.INFO: st.builds(smp.INFO, queue_infos),
    smp.OK: st.just(smp.OK()),
    smp.ERR: st.builds(smp.ERR, error_types),
    smp.PONG: st.just(smp.PONG()),
}

# Transmissions

sessions = st.one_of(
    st.builds(Session.ntf, st.binary(min_size=32, max_size=32), ntf_versions),
    st.builds(Session.smp, st.binary(min_size=32, max_size=32), smp_versions),
)
authorizations = st.sampled_from([64, 80, 114]).flatmap(
    lambda size: st.binary(min_size=size, max_size=size)
)
service_signatures = st.binary(min_size=64, max_size=64)

# Handshakes

client_services = st.builds(
    handshakes.ClientService, st.sampled_from(handshakes.ServiceRole), cert_chain_keys
)

# What boxes hold

rcv_messages = st.one_of(
    st.builds(messages.RcvMessage, times, flags, bodies), st.builds(messages.RcvQuota, i64s)
)
nmsg_metas = st.builds(push.NMsgMeta, shorts, i64s)
nonempty = st.binary(min_size=1, max_size=160)
nonces = st.binary(min_size=24, max_size=24)
pn_messages = st.builds(push.PNMessageData, text_queues, times, nonces, nonempty)
pushes = st.one_of(
    st.builds(push.VerificationPush, nonces, nonempty),
    st.builds(push.MessagePush, nonces, nonempty),
    st.just(push.CheckMessagesPush()),
)
