// When a ratio of times says something: its range over the rounds lies on one side of 1.

const spansOne = (low, high) => isNumber(low) && isNumber(high) && low <= 1 && high >= 1;

// A ratio whose range is known and lies on one side of 1.
const isClear = (low, high) => isNumber(low) && isNumber(high) && !spansOne(low, high);

// `1.30×`, or that there is none.
const speedWords = (x, low, high) => (spansOne(low, high) ? 'no difference' : speedup(x));

// The same with the range it was taken from.
function speedRange(x, low, high) {
  const range = isNumber(low) && isNumber(high) ? ` (${speedup(low)} to ${speedup(high)})` : '';
  return spansOne(low, high) ? `no difference from dense${range}` : `${speedup(x)} dense${range}`;
}
