// Package hostile holds tests only: a live endpoint on a real interface under load, and an attacker
// who sends whatever frames he likes to it. Nothing may crash, nobody else's connection may notice,
// and the counters must tell what has come.
//
//	namespace A                     namespace B
//	┌──────────────────┐            ┌───────────────────────────────┐
//	│ endpoint: server │◀══ veth ══▶│ endpoint: client, under load  │
//	│                  │            │ attacker: raw packet socket   │
//	└──────────────────┘            └───────────────────────────────┘
//
// What no endpoint can tell from its peer's own packets, since RoCEv2 has no secrets: packets with
// a connection's addresses, QPN and PSN. So the attacker may hurt the connection that he aims such
// packets at, and no other.
package hostile
