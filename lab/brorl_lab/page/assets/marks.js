// Give each kind of span a mark: a colour and a pattern. The kinds of one process have distinct patterns, so that no two
// of them differ by colour alone.

const TILE = 12; // pixels of a pattern's square
const PATTERNS = [
  "", // plain
  "M-3 3L3 -3M-3 15L15 -3M9 15L15 9", // rising lines
  "M4 4h.01M10 10h.01", // dots
  "M3 0V12M9 0V12", // upright lines
  "M-3 -3L15 15M-3 9L3 15M9 -3L15 3", // falling lines
  "M0 4H12M0 10H12", // level lines
  "M0 0L12 12M12 0L0 12", // crosses
  "M0 9L6 3L12 9", // zigzag
  "M6 0V12M0 6H12", // grid
  "M9.5 6A3.5 3.5 0 1 1 2.5 6A3.5 3.5 0 1 1 9.5 6", // rings
  "M1 4H5M7 10H11", // dashes
  "M0 10H6V3H12M12 10V3", // steps
  "M2 0V12M4 0V12M6 0V12", // upright bars
  "M3 2V7M9 7V12", // upright dashes
  "M0 5H12M0 7H12M0 9H12", // a level bar
  "M2 10L6 3L10 10Z", // triangles
];

// Return the mark of each kind, {colour, pattern} as numbers. processesOf: the processes with spans of each kind.
function marksOf(kinds, processesOf) {
  const marks = new Map();
  kinds.forEach((kind, index) => {
    const others = [...marks].filter(([other]) => processesOf.get(other).some((process) => processesOf.get(kind).includes(process)));
    const isTaken = (pattern) => others.some(([, mark]) => mark.pattern === pattern);
    const isSame = (pattern) => [...marks.values()].some((mark) => mark.pattern === pattern && mark.colour === index % COLOURS.length);
    const all = PATTERNS.map((path, pattern) => pattern);
    const pattern = all.find((one) => !isTaken(one) && !isSame(one)) ?? all.find((one) => !isSame(one)) ?? 0;
    marks.set(kind, { colour: index % COLOURS.length, pattern });
  });
  return marks;
}

// Return black or white, whichever is easier to read on a colour ("#rrggbb").
function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (luminance + 0.05) ** 2 > 0.05 * 1.05 ? "#000000" : "#ffffff";
}

// Return the fill of a span with a mark. Its pattern starts at the span's corner.
function filling(context, mark) {
  const side = Math.round(TILE * devicePixelRatio);
  const tile = h("canvas", { width: side, height: side });
  const drawing = tile.getContext("2d");
  drawing.fillStyle = colour(mark.colour);
  drawing.fillRect(0, 0, side, side);
  drawing.scale(side / TILE, side / TILE);
  drawing.strokeStyle = inkOn(colour(mark.colour));
  drawing.lineWidth = PATTERNS[mark.pattern].includes("h.01") ? 3.5 : 1.4;
  drawing.lineCap = "round";
  drawing.stroke(new Path2D(PATTERNS[mark.pattern]));
  const pattern = context.createPattern(tile, "repeat");
  return (left, top) => {
    pattern.setTransform(new DOMMatrix().translate(Math.round(left), Math.round(top)));
    return pattern;
  };
}

function swatch(mark) {
  const [width, height] = [26, 14];
  const element = h("canvas", { class: "mark", width: Math.round(width * devicePixelRatio), height: Math.round(height * devicePixelRatio), "aria-hidden": "true" });
  const context = element.getContext("2d");
  context.fillStyle = filling(context, mark)(0, 0);
  context.fillRect(0, 0, element.width, element.height);
  return element;
}

// Return the marks of every process, with its kinds in the order of their first span.
function marksLegend(marks, processesOf) {
  const processes = [...new Set([...processesOf.values()].flat())];
  const kindsOf = (process) => [...marks].filter(([kind]) => processesOf.get(kind).includes(process));
  return h("div", { class: "legend marks" }, processes.flatMap((process) => [h("b", null, process),
    h("div", null, kindsOf(process).map(([kind, mark]) => h("span", null, swatch(mark), kind)))]));
}
