package cm

import (
	"bytes"
	"path/filepath"
	"testing"
)

// FuzzDecode: no input panics; what decodes encodes to a MAD that decodes to the same message.
func FuzzDecode(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.hex")
	for _, name := range files {
		for _, c := range readCapture(f, filepath.Base(name)) {
			f.Add(c.mad[:])
		}
	}
	f.Add([]byte{})
	for a := AttrREQ; a <= AttrAPR; a++ {
		mad := Encode(1, &RTU{LocalID: 1, RemoteID: 2})
		mad[17] = byte(a)
		f.Add(mad[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		msg, d := Decode(b)
		if (msg == nil) != (d != DropNone) {
			t.Fatalf("message %v, drop %v", msg, d)
		}
		if msg == nil {
			return
		}
		once := Encode((*MAD)(b).TID(), msg)
		again, d := Decode(once[:])
		if d != DropNone {
			t.Fatalf("encoded message: %v", d)
		}
		twice := Encode(once.TID(), again)
		if once != twice || once.TID() != (*MAD)(b).TID() {
			t.Fatalf("%v changes:\n%x\n%x", msg.Attr(), once, twice)
		}
	})
}

// FuzzReceive runs a program of calls and of MADs made of valid ones with some bytes changed, and
// checks the accounts after every step. A step is an operation, a connection, a time in 100 ms and
// a number of changes, then an offset and a value for each of them.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 20, 0, 1, 0, 6, 0, 1, 0, 7, 0, 1, 0, 30, 0, 255, 0})
	f.Add([]byte{14, 0, 1, 0, 5, 0, 1, 0, 15, 0, 1, 0, 17, 0, 1, 0, 8, 0, 1, 1, 35, 9})
	f.Add(bytes.Repeat([]byte{0, 0, 1, 1, 27, 3}, 40))
	f.Add(bytes.Repeat([]byte{3, 1, 200, 2, 40, 255, 11, 128}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		cfg := testConfig()
		cfg.MaxConns, cfg.MaxHalfOpen, cfg.MaxHalfOpenPeer, cfg.MaxEvents = 40, 20, 10, 30
		cfg.MaxQueue, cfg.MaxFarewells = 50, 8
		m := newMachine(t, cfg)
		for _, s := range []ServiceID{tcp, udp} {
			_, err := m.Listen(ListenParam{Service: s, Backlog: 15})
			must(t, err)
		}
		ids := []ID{1}
		now := Time(0)
		for len(b) >= 4 {
			op, id, changes := int(b[0]), ids[int(b[1])%len(ids)], int(b[3]&3)
			now += Time(b[2]) * 1e8
			b = b[4:]
			if len(b) < 2*changes {
				break
			}
			if op >= len(stimuli) {
				fuzzCall(m, op-len(stimuli), now, &ids)
			} else if op < messageStimuli {
				mad := stimuli[op].mad(id)
				for i := range changes {
					mad[b[2*i]] = b[2*i+1]
				}
				m.Receive(now, peerAddr, mad[:])
			} else {
				_ = stimuli[op].do(m, id) // errors are expected
			}
			b = b[2*changes:]
			checkInvariants(t, m)
			if m.HalfOpen() > 20 || m.Len() > 40 || len(m.out) > 50 || len(m.events) > 30+5*40 {
				t.Fatalf("half-open %d, all %d, to send %d, events %d",
					m.HalfOpen(), m.Len(), len(m.out), len(m.events))
			}
		}
	})
}

func fuzzCall(m *Machine, n int, now Time, ids *[]ID) {
	switch n % 8 {
	case 0, 1, 2:
		m.Expire(now)
	case 3:
		for ev, ok := m.Poll(); ok; ev, ok = m.Poll() {
			*ids = append(*ids, ev.ID)
		}
	case 4:
		var out Out
		for m.Next(&out) {
		}
	default:
		p := ConnectParam{Param: ours, Addr: peerAddr, Service: tcp, MTU: 3}
		if n%8 == 7 {
			p.Service, p.Transport = udp, TransportUD
		}
		if id, err := m.Connect(now, p); err == nil {
			*ids = append(*ids, id)
		}
	}
}
