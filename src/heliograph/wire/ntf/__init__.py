"""The notification router protocol: commands and responses, device tokens, content of pushes."""

from heliograph.wire.ntf.commands import (
    ERR as ERR,
    IDSUB as IDSUB,
    IDTKN as IDTKN,
    NTF_COMMANDS as NTF_COMMANDS,
    NTF_RESPONSES as NTF_RESPONSES,
    SCHK as SCHK,
    SDEL as SDEL,
    SNEW as SNEW,
    SUB as SUB,
    TCHK as TCHK,
    TCRN as TCRN,
    TDEL as TDEL,
    TKN as TKN,
    TNEW as TNEW,
    TRPL as TRPL,
    TVFY as TVFY,
    NtfCommand as NtfCommand,
    NtfResponse as NtfResponse,
)
from heliograph.wire.table import OK as OK, PING as PING, PONG as PONG
