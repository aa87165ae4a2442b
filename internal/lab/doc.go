// Package lab builds the network that roxie shows itself in: two named network namespaces joined by
// a veth pair.
//
//	┌────── NAME-a ──────┐        ┌────── NAME-b ──────┐
//	│ 10.77.0.1/24       │  veth  │ 10.77.0.2/24       │
//	│ fd77::1/64   veth0 │════════│ veth0   fd77::2/64 │
//	└────────────────────┘        └────────────────────┘
//
// The namespaces appear in /run/netns, where ip netns finds them; nothing else of the host is
// touched. All is done over netlink, without the ip program. It needs root, or CAP_SYS_ADMIN and
// CAP_NET_ADMIN.
//
// A lab without a given name belongs to the process that made it, whose id is part of its name. If
// that process dies before Close, [Stale] finds the lab and [Remove] takes it away, also if only
// half of it was built.
package lab
