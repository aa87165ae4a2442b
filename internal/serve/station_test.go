package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
)

// TestReadyWhenListening: an endpoint is ready when all its services listen, not when they have been
// started; one that cannot listen does not keep the others waiting.
func TestReadyWhenListening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		listen := make(chan struct{})
		st := &station{change: make(chan struct{}, 1), wanted: func() map[string]service {
			return map[string]service{
				"slow": {name: "slow", run: func(ctx context.Context, h *host) error {
					<-listen
					h.up()
					<-ctx.Done()
					return nil
				}},
				"failing": {name: "failing", run: func(context.Context, *host) error {
					return errors.New("the port is taken")
				}},
			}
		}}
		ready, ended := false, false
		go func() {
			st.serve(ctx, &host{log: slog.New(slog.NewTextHandler(io.Discard, nil))}, func() { ready = true })
			ended = true
		}()
		synctest.Wait()
		if ready {
			t.Error("ready before a service listens")
		}
		close(listen)
		synctest.Wait()
		if !ready {
			t.Error("not ready although all listen")
		}
		stop()
		synctest.Wait()
		if !ended {
			t.Error("services do not end")
		}
	})
}
