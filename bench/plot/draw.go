package main

import (
	"fmt"
	"image/color"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// palette is Okabe and Ito's, which colour-blind people can tell apart.
var palette = []color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {230, 159, 0, 255},
	{86, 180, 233, 255}, {90, 90, 90, 255},
}

const width, height = 7.5 * vg.Inch, 5 * vg.Inch

// write draws the figure into a file.
func (f *figure) write(name string) error {
	p, err := f.plot()
	if err != nil {
		return err
	}
	c := vgsvg.New(width, height)
	p.Draw(draw.New(c))
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(file); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

// plot puts the figure together.
func (f *figure) plot() (*plot.Plot, error) {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = f.title, f.x, f.y
	p.Title.Padding = vg.Points(6)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{225}, color.Gray{225}
	p.Add(grid)
	p.Legend.Top = true
	p.Legend.Left = true
	p.Legend.Padding = vg.Points(2)
	xs := map[float64]bool{}
	for i, l := range f.lines {
		lines, marks, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
		lines.Color, lines.Width = palette[i%len(palette)], vg.Points(1.6)
		if l.dashed {
			lines.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		marks.Color, marks.Shape, marks.Radius = lines.Color, draw.CircleGlyph{}, vg.Points(2)
		p.Add(lines, marks)
		p.Legend.Add(l.name, lines)
		for _, xy := range l.points {
			xs[xy.X] = true
		}
	}
	if p.X.Min == p.X.Max { // a single point: the library would go down to 0
		p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
	}
	if f.logX {
		p.X.Scale = plot.LogScale{}
		p.X.Tick.Marker = atTicks{f.ticks, xs}
	}
	if f.logY {
		p.Y.Scale = plot.LogScale{}
		p.Y.Tick.Marker = logTicks{}
		p.Y.Min, p.Y.Max = p.Y.Min/1.3, p.Y.Max*6 // room for the legend
	}
	if f.zeroY {
		p.Y.Min, p.Y.Max = 0, p.Y.Max*1.35
	}
	return p, nil
}

// atTicks puts ticks where there are points, as far as they do not stand too close.
type atTicks struct {
	label func(float64) string
	at    map[float64]bool
}

// Ticks implements plot.Ticker.
func (t atTicks) Ticks(least, most float64) (out []plot.Tick) {
	seen := map[string]bool{}
	for x := range t.at {
		if text := t.label(x); x >= least && x <= most && text != "" && !seen[text] {
			seen[text] = true
			out = append(out, plot.Tick{Value: x, Label: text})
		}
	}
	return out
}

// logTicks has a label at 1, 2 and 5 of each decade.
type logTicks struct{}

// Ticks implements plot.Ticker.
func (logTicks) Ticks(least, most float64) (out []plot.Tick) {
	for d := math.Floor(math.Log10(least)); d <= math.Ceil(math.Log10(most)); d++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, d); v >= least && v <= most {
				out = append(out, plot.Tick{Value: v, Label: fmt.Sprintf("%g", v)})
			}
		}
	}
	return out
}

func plainTick(v float64) string { return fmt.Sprintf("%g", v) }

// bytesTick writes sizes as 8, 4 Ki, 1 Mi.
func bytesTick(v float64) string {
	switch n := int(v); {
	case n >= 1<<20:
		return fmt.Sprintf("%d Mi", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d Ki", n>>10)
	default:
		return fmt.Sprint(n)
	}
}

// ninesTick labels the quantiles that people talk of.
func ninesTick(v float64) string {
	for _, q := range []struct {
		at   float64
		text string
	}{{0.5, "50 %"}, {0.9, "90 %"}, {0.99, "99 %"}, {0.999, "99.9 %"}, {0.9999, "99.99 %"},
		{0.99999, "99.999 %"}} {
		if math.Abs(v-nines(q.at)) < 1e-3*v {
			return q.text
		}
	}
	return ""
}
