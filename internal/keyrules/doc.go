// Package keyrules tries the rules of registered memory on two devices and says what happened: what
// reaches which memory while keys and lists change, who may take a key away, where a window ends.
//
// An owner has regions and windows; a peer reaches for them, each time on a connection of its own,
// since a refusal ends a connection. The owner's send queue can be held: a SEND for which the
// peer has no receive, and behind it what is to wait. Steps and names are those of two programs that
// were run against Linux rdma_rxe, whose results stand in Linux beside ours (docs/keys.md).
//
// It is a demonstration that anybody can run (roxie keys), on an ordinary interface and through the
// API alone. The proofs are the tests of packages rxe and rxe/mr, which stop engine and packets
// where they like.
package keyrules
