#!/usr/bin/python3
"""Writes golden frames made by scapy (2.5.0), which shares no code with this package.

Run in this folder: ./gen.py. IPv4 frames get their ICRC from scapy; scapy has none for IPv6, so
these are masked here and checked with zlib. Each file's first line names its origin.
"""
import zlib

from scapy.all import IP, UDP, Dot1Q, Ether, IPOption_NOP, IPv6, Raw
from scapy.contrib.roce import BTH, cnp

A, B = "02:00:00:00:07:01", "02:00:00:00:07:02"
DATA = bytes((i * 7 + 1) & 255 for i in range(256))


def write(name, origin, frame):
    rows = [frame[i:i + 16].hex(" ") for i in range(0, len(frame), 16)]
    with open(name + ".hex", "w") as f:
        f.write("# " + origin + "\n" + "\n".join(rows) + "\n")


def body(op, ext, n, **bth):
    pad = -n % 4
    h = BTH(opcode=op, padcount=pad, pkey=0xFFFF, dqpn=0x17, psn=0xFFFFFE, **bth)
    return h / Raw(ext + DATA[:n] + bytes(pad)) if ext or n else h


def v4(name, op, ext=b"", n=0, vlan=None, tail=b"", ip=None, **bth):
    eth = Ether(src=A, dst=B)
    if vlan:
        eth = eth / Dot1Q(**vlan)
    net = IP(src="192.168.7.1", dst="192.168.7.2", flags="DF", id=0, ttl=64, **(ip or {}))
    pkt = eth / net / UDP(sport=0xC121, dport=4791, chksum=0) / body(op, ext, n, **bth)
    write(name, "scapy 2.5.0, gen.py: " + name, bytes(pkt) + tail)


def v6(name, op, ext=b"", n=0, vlan=None, **bth):
    eth = Ether(src=A, dst=B)
    if vlan:
        eth = eth / Dot1Q(**vlan)
    net = IPv6(src="fd00:7::1", dst="fd00:7::2", tc=0x2E, fl=0x12345, hlim=64)
    pkt = eth / net / UDP(sport=0xC121, dport=4791, chksum=0) / body(op, ext, n, icrc=0, **bth)
    frame = bytearray(bytes(pkt))
    l2 = 18 if vlan else 14
    m = frame[l2:-4]
    m[0] |= 0x0F
    for i in (1, 2, 3, 7, 46, 47, 52):
        m[i] = 0xFF
    frame[-4:] = zlib.crc32(b"\xff" * 8 + m).to_bytes(4, "little")
    write(name, "scapy 2.5.0 and zlib.crc32, gen.py: " + name, bytes(frame))


RETH = bytes.fromhex("0000123456789abc" "00000ed2" "00001000")
IMM = bytes.fromhex("cafe1234")
v4("vlan", 0x04, n=5, vlan=dict(vlan=100, prio=5), solicited=1, ackreq=1)
v4("vlan_4095", 0x07, n=256, vlan=dict(vlan=4095, prio=7))
v4("vlan_priority_tag", 0x04, n=64, vlan=dict(vlan=0, prio=3))
v4("ip_options_4", 0x0A, RETH, 33, ip=dict(options=[IPOption_NOP()] * 4))
v4("ip_options_40", 0x0A, RETH, 100, ip=dict(options=[IPOption_NOP()] * 40))
v4("eth_padding", 0x04, tail=b"\xa5\xa5", ackreq=1)
v4("eth_padding_ack_vlan", 0x11, b"\x1f\x00\x00\x07", tail=bytes(46), vlan=dict(vlan=9))
v4("tos_fecn", 0x00, n=256, ip=dict(tos=0x2E), fecn=1, migreq=1)
v4("flush", 0x1C, bytes.fromhex("00000011") + RETH, ackreq=1)
v4("write_last_imm", 0x09, IMM, 7, ackreq=1, solicited=1)
v4("write_only_imm", 0x0B, RETH + IMM, 2, ackreq=1)
v4("uc_write_first", 0x26, RETH, 256)
v4("uc_write_last_imm", 0x29, IMM, 1)
v4("uc_write_only_imm", 0x2B, RETH + IMM, 3)
v6("v6_vlan", 0x06, RETH, 256, vlan=dict(vlan=7, prio=1))
v6("v6_write_only_imm", 0x0B, RETH + IMM, 61, ackreq=1)
v6("v6_flush", 0x1C, bytes.fromhex("00000002") + RETH, becn=1)
write("cnp", "scapy 2.5.0, gen.py: cnp", bytes(
    Ether(src=A, dst=B) / IP(src="192.168.7.2", dst="192.168.7.1", flags="DF", id=0, tos=0xC2)
    / UDP(sport=0, dport=4791, chksum=0) / cnp(dqpn=0xD2)))
write("vector_uc", 'scapy test/contrib/roce.uts, "an example UC packet": ICRC 78 f3 53 f3',
      bytes.fromhex("248a07a8fa22248a07a8fa2208004501004004784000"
                    "4011b4d5c0a80007c0a80007c00012b7002caca22460ffff000000d300cf1710"
                    "4630818be28935d90e9a95505401be885e50000078f353f3"))
write("vector_cnp", 'scapy test/contrib/roce.uts, "captured on ConnectX-4 Lx": ICRC 82 fd 00 2a',
      bytes.fromhex("e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a00"
                    "1201000012b7002800008100ffff400001180000000000000000000000000000"
                    "00000000000082fd002a"))
