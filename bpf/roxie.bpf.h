/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The few kernel types, constants and helpers that roxie.bpf.c needs, written down here so that
 * the object can be rebuilt from this folder and clang alone, to the same bytes on any machine.
 * All of it is kernel ABI (numbers and layouts that never change).
 */
#ifndef ROXIE_BPF_H
#define ROXIE_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef __u16 __be16;

#define SEC(name) __attribute__((section(name), used))
#define always_inline inline __attribute__((always_inline))

/* Map definitions in BTF form. */
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_XSKMAP 17

enum xdp_action {
	XDP_ABORTED = 0,
	XDP_DROP = 1,
	XDP_PASS = 2,
	XDP_TX = 3,
	XDP_REDIRECT = 4,
};

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static __u64 (*bpf_xdp_get_buff_len)(struct xdp_md *ctx) = (void *)188;
static long (*bpf_xdp_load_bytes)(struct xdp_md *ctx, __u32 offset, void *buf,
				 __u32 len) = (void *)189;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htons(x) ((__be16)__builtin_bswap16(x))
#else
#define bpf_htons(x) ((__be16)(x))
#endif
#define bpf_ntohs(x) ((__u16)bpf_htons(x))

struct ethhdr {
	__u8 dst[6];
	__u8 src[6];
	__be16 proto;
} __attribute__((packed));

/* What follows the EtherType of a tagged frame: IEEE 802.1Q. */
struct vlanhdr {
	__be16 tci;
	__be16 proto;
};

struct ipv4hdr {
	__u8 version_ihl;
	__u8 tos;
	__be16 tot_len;
	__be16 id;
	__be16 frag_off;
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u8 saddr[4];
	__u8 daddr[4];
};

struct ipv6hdr {
	__u8 version_class; /* the version is the upper half */
	__u8 class_flow[3];
	__be16 payload_len;
	__u8 nexthdr;
	__u8 hop_limit;
	__u8 saddr[16];
	__u8 daddr[16];
};

struct udphdr {
	__be16 source;
	__be16 dest;
	__be16 len;
	__u16 check;
};

#endif
