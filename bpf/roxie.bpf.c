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
static always_inline enum verdict judge_udp(const struct udphdr *udp, __u32 room,
					    const struct address_key *key)
{
	__u32 len;

	if (udp->dest != bpf_htons(ROCE_PORT))
		return VERDICT_OTHER_PORT;
	len = bpf_ntohs(udp->len);
	if (len < sizeof(*udp) || len > room)
		return VERDICT_MALFORMED;
	if (!bpf_map_lookup_elem(&addresses, key))
		return VERDICT_OTHER_ADDRESS;
	return VERDICT_REDIRECTED;
}

/* off is where the IP header starts; key has the VLAN and is given the address. */
static always_inline enum verdict judge_ipv4(struct xdp_md *ctx, __u32 off,
					     struct address_key *key)
{
	struct ipv4hdr *ip = (void *)(long)ctx->data + off;
	void *end = (void *)(long)ctx->data_end;
	struct udphdr *udp = (void *)(ip + 1), copy;
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
	if (tot_len < hlen + sizeof(*udp))
		return VERDICT_MALFORMED;
	if (off + tot_len > bpf_xdp_get_buff_len(ctx))
		return VERDICT_TRUNCATED;
	if (hlen > sizeof(*ip)) {
		/* The verifier allows a pointer of variable offset only with CAP_PERFMON. */
		if (bpf_xdp_load_bytes(ctx, off + hlen, &copy, sizeof(copy)))
			return VERDICT_TRUNCATED;
		udp = &copy;
	} else if ((void *)(udp + 1) > end) {
		return VERDICT_TRUNCATED;
	}
	key->addr[10] = 0xff;
	key->addr[11] = 0xff;
	__builtin_memcpy(&key->addr[12], ip->daddr, sizeof(ip->daddr));
	return judge_udp(udp, tot_len - hlen, key);
}

static always_inline enum verdict judge_ipv6(struct xdp_md *ctx, __u32 off,
					     struct address_key *key)
{
	struct ipv6hdr *ip = (void *)(long)ctx->data + off;
	void *end = (void *)(long)ctx->data_end;
	struct udphdr *udp = (void *)(ip + 1);
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
	if (payload_len < sizeof(*udp))
		return VERDICT_MALFORMED;
	if (off + sizeof(*ip) + payload_len > bpf_xdp_get_buff_len(ctx) || (void *)(udp + 1) > end)
		return VERDICT_TRUNCATED;
	__builtin_memcpy(key->addr, ip->daddr, sizeof(ip->daddr));
	return judge_udp(udp, payload_len, key);
}

static always_inline enum verdict judge_ip(struct xdp_md *ctx, __u32 off, __be16 proto, __u16 vlan)
{
	struct address_key key = {.vlan = vlan};

	if (proto == bpf_htons(ETH_P_IPV4))
		return judge_ipv4(ctx, off, &key);
	if (proto == bpf_htons(ETH_P_IPV6))
		return judge_ipv6(ctx, off, &key);
	return VERDICT_NOT_IP;
}

/* Returns VERDICT_REDIRECTED for a frame that is ours; whether a socket waits is not known yet. */
static always_inline enum verdict judge(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct vlanhdr *tag = (void *)(eth + 1);
	void *end = (void *)(long)ctx->data_end;

	if ((void *)(eth + 1) > end)
		return VERDICT_TRUNCATED;
	if (eth->proto == bpf_htons(ETH_P_8021AD))
		return VERDICT_QINQ;
	if (eth->proto != bpf_htons(ETH_P_8021Q))
		return judge_ip(ctx, sizeof(*eth), eth->proto, 0);
	if ((void *)(tag + 1) > end)
		return VERDICT_TRUNCATED;
	if (tag->proto == bpf_htons(ETH_P_8021Q) || tag->proto == bpf_htons(ETH_P_8021AD))
		return VERDICT_QINQ;
	return judge_ip(ctx, sizeof(*eth) + sizeof(*tag), tag->proto,
			bpf_ntohs(tag->tci) & VLAN_VID_MASK);
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
