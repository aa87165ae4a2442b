//go:build ignore

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The steering program: UDP port 4791 to one of our addresses goes to the AF_XDP socket of the
 * queue it arrived on, everything else goes on to the kernel's stack untouched.
 *
 *   Ethernet -> [802.1Q] -> IPv4 (options allowed) | IPv6 (no extension headers) -> UDP 4791
 *            -> (VLAN, address) in addresses? -> sockets[rx queue]
 *
 * It never drops and never changes a frame. Headers are read only where they are linear; a driver
 * keeps far more than the 86 bytes needed there. The IPv4 header checksum is not verified: a NIC
 * does that, and the RoCEv2 ICRC covers the addresses.
 *
 * loader.go and stats.go are the other side of the maps; model_test.go says the same in Go.
 */
#include "roxie.bpf.h"

#define ROCE_PORT 4791

#define ETH_P_IPV4 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define VLAN_VID_MASK 0x0fff

#define IPPROTO_UDP 17
#define IPPROTO_FRAGMENT 44
#define IPV4_MORE_FRAGMENTS_OR_OFFSET 0x3fff

/* Why a frame went where it went: the index in counters. Verdict in stats.go has the same order. */
enum verdict {
	VERDICT_REDIRECTED,
	VERDICT_NOT_IP,
	VERDICT_NOT_UDP,
	VERDICT_OTHER_PORT,
	VERDICT_FRAGMENT,
	VERDICT_QINQ,
	VERDICT_OTHER_ADDRESS,
	VERDICT_NO_SOCKET,
	VERDICT_TRUNCATED,
	VERDICT_MALFORMED,
	VERDICT_COUNT,
};

/* A local address. IPv4 is mapped into IPv6 (::ffff:a.b.c.d); vlan 0 is untagged or priority. */
struct address_key {
	__u8 addr[16];
	__u16 vlan;
	__u16 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct address_key);
	__type(value, __u32);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VERDICT_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/*
 * Judges what stands behind the IP header. room is how many bytes the IP header says the UDP
 * datagram may take.
 */
static always_inline enum verdict judge_udp(void *l4, void *end, __u32 room,
					    const struct address_key *key)
{
	struct udphdr *udp = l4;
	__u32 len;

	if (room < sizeof(*udp))
		return VERDICT_MALFORMED;
	if ((void *)(udp + 1) > end)
		return VERDICT_TRUNCATED;
	if (udp->dest != bpf_htons(ROCE_PORT))
		return VERDICT_OTHER_PORT;
	len = bpf_ntohs(udp->len);
	if (len < sizeof(*udp) || len > room)
		return VERDICT_MALFORMED;
	if (!bpf_map_lookup_elem(&addresses, key))
		return VERDICT_OTHER_ADDRESS;
	return VERDICT_REDIRECTED;
}

/* have is the number of bytes in the frame from the IP header on. */
static always_inline enum verdict judge_ipv4(void *l3, void *end, __u64 have,
					     struct address_key *key)
{
	struct ipv4hdr *ip = l3;
	__u32 hlen, tot_len;

	if ((void *)(ip + 1) > end)
		return VERDICT_TRUNCATED;
	hlen = (ip->version_ihl & 0x0f) * 4;
	if (ip->version_ihl >> 4 != 4 || hlen < sizeof(*ip))
		return VERDICT_MALFORMED;
	if (ip->protocol != IPPROTO_UDP)
		return VERDICT_NOT_UDP;
	if (ip->frag_off & bpf_htons(IPV4_MORE_FRAGMENTS_OR_OFFSET))
		return VERDICT_FRAGMENT;
	tot_len = bpf_ntohs(ip->tot_len);
	if (tot_len < hlen)
		return VERDICT_MALFORMED;
	if (tot_len > have)
		return VERDICT_TRUNCATED;
	key->addr[10] = 0xff;
	key->addr[11] = 0xff;
	__builtin_memcpy(&key->addr[12], ip->daddr, sizeof(ip->daddr));
	return judge_udp(l3 + hlen, end, tot_len - hlen, key);
}

static always_inline enum verdict judge_ipv6(void *l3, void *end, __u64 have,
					     struct address_key *key)
{
	struct ipv6hdr *ip = l3;
	__u32 payload_len;

	if ((void *)(ip + 1) > end)
		return VERDICT_TRUNCATED;
	if (ip->version_class >> 4 != 6)
		return VERDICT_MALFORMED;
	if (ip->nexthdr == IPPROTO_FRAGMENT)
		return VERDICT_FRAGMENT;
	if (ip->nexthdr != IPPROTO_UDP)
		return VERDICT_NOT_UDP;
	payload_len = bpf_ntohs(ip->payload_len);
	if (sizeof(*ip) + payload_len > have)
		return VERDICT_TRUNCATED;
	__builtin_memcpy(key->addr, ip->daddr, sizeof(ip->daddr));
	return judge_udp(ip + 1, end, payload_len, key);
}

/* Returns VERDICT_REDIRECTED for a frame that is ours; whether a socket waits is not known yet. */
static always_inline enum verdict judge(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct address_key key = {};
	struct ethhdr *eth = data;
	void *l3 = eth + 1;
	__u64 have = bpf_xdp_get_buff_len(ctx) - sizeof(*eth);
	__be16 proto;

	if (l3 > end)
		return VERDICT_TRUNCATED;
	proto = eth->proto;
	if (proto == bpf_htons(ETH_P_8021Q)) {
		struct vlanhdr *tag = l3;

		l3 = tag + 1;
		if (l3 > end)
			return VERDICT_TRUNCATED;
		have -= sizeof(*tag);
		key.vlan = bpf_ntohs(tag->tci) & VLAN_VID_MASK;
		proto = tag->proto;
		if (proto == bpf_htons(ETH_P_8021Q))
			return VERDICT_QINQ;
	}
	if (proto == bpf_htons(ETH_P_IPV4))
		return judge_ipv4(l3, end, have, &key);
	if (proto == bpf_htons(ETH_P_IPV6))
		return judge_ipv6(l3, end, have, &key);
	if (proto == bpf_htons(ETH_P_8021AD))
		return VERDICT_QINQ;
	return VERDICT_NOT_IP;
}

SEC("xdp.frags")
int roxie_steer(struct xdp_md *ctx)
{
	__u32 verdict = judge(ctx);
	long action = XDP_PASS;
	__u64 *count;

	if (verdict == VERDICT_REDIRECTED) {
		action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
		if (action != XDP_REDIRECT)
			verdict = VERDICT_NO_SOCKET;
	}
	count = bpf_map_lookup_elem(&counters, &verdict);
	if (count)
		(*count)++;
	return action;
}

char __license[] SEC("license") = "Dual BSD/GPL";
