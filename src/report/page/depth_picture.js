// Draws the depth map on a canvas at device pixels: one row per layer, one column per token, and
// below it how many layers keep each token. A pixel column that covers several tokens gets the mean
// of their colours.

const kDepthTop = 36;     // names of the axes, positions
const kDepthBars = 44;    // bars of kept layers
const kDepthLabels = 64;  // token texts, when there is room for them
const kDepthHint = 24;    // a line in their place, when there is not
const kLabelCell = 13;    // CSS pixels a token needs for its text

function parseColour(text) {
  const hex = text.replace('#', '');
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

const depthRowHeight = (nLayers) => Math.max(6, Math.min(22, Math.round(300 / nLayers)));
const depthHeight = (nLayers, labels) => kDepthTop + depthRowHeight(nLayers) * nLayers + 8 +
    kDepthBars + (labels ? kDepthLabels : kDepthHint);

// view: {from, to} in tokens, may be fractional; cursor: {token, layer} or null.
function drawDepth(canvas, map, view, cursor) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, left = 30, rowHeight = depthRowHeight(map.nLayers);
  const cell = (width - left) / (view.to - view.from);
  const height = depthHeight(map.nLayers, cell >= kLabelCell);
  canvas.style.height = height + 'px';
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext('2d');
  ctx.scale(ratio, ratio);
  const x = (t) => left + (t - view.from) * cell;
  const rowsBottom = kDepthTop + rowHeight * map.nLayers;

  const columns = Math.max(1, Math.round((width - left) * ratio));
  const picture = document.createElement('canvas');
  picture.width = columns;
  picture.height = map.nLayers;
  picture.getContext('2d').putImageData(depthPixels(map, view, columns), 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(picture, left, kDepthTop, width - left, rowHeight * map.nLayers);

  const ink = cssColour('--muted'), paper = cssColour('--paper');
  ctx.strokeStyle = paper;
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (let l = 0; l <= map.nLayers && rowHeight >= 5; ++l) {
    ctx.moveTo(left, kDepthTop + l * rowHeight);
    ctx.lineTo(width, kDepthTop + l * rowHeight);
  }
  for (let t = Math.ceil(view.from); cell >= 6 && t < view.to; ++t) {
    ctx.moveTo(x(t), kDepthTop);
    ctx.lineTo(x(t), rowsBottom);
  }
  ctx.stroke();
  drawDepthBars(ctx, map, view, {x, cell, bottom: rowsBottom + 8 + kDepthBars});
  drawDepthText(
      ctx, map, view, {x, cell, left, width, rowHeight, ink, bottom: rowsBottom + 8 + kDepthBars});
  if (cursor) {
    ctx.strokeStyle = cssColour('--ink');
    ctx.lineWidth = 2;
    const w = Math.max(cell, 4);
    ctx.strokeRect(
        x(cursor.token) + cell / 2 - w / 2, kDepthTop + cursor.layer * rowHeight, w, rowHeight);
  }
}

function depthPixels(map, view, columns) {
  const image = new ImageData(columns, map.nLayers);
  const colours = [
    '--map-redundant', '--map-representative', '--map-exempt', '--map-uncovered'
  ].map((name) => parseColour(cssColour(name)));
  const perColumn = (view.to - view.from) / columns;
  for (let c = 0; c < columns; ++c) {
    const first = Math.min(map.nTokens - 1, Math.floor(view.from + c * perColumn));
    const last =
        Math.min(map.nTokens, Math.max(first + 1, Math.floor(view.from + (c + 1) * perColumn)));
    for (let l = 0; l < map.nLayers; ++l) {
      let r = 0, g = 0, b = 0;
      for (let t = first; t < last; ++t) {
        const colour = colours[map.status[l * map.nTokens + t]];
        r += colour[0];
        g += colour[1];
        b += colour[2];
      }
      const n = last - first, at = 4 * (l * columns + c);
      image.data[at] = r / n;
      image.data[at + 1] = g / n;
      image.data[at + 2] = b / n;
      image.data[at + 3] = 255;
    }
  }
  return image;
}

function drawDepthBars(ctx, map, view, {x, cell, bottom}) {
  ctx.fillStyle = cssColour('--map-representative');
  ctx.globalAlpha = 0.75;
  const step = Math.max(1, Math.floor(0.5 / cell));  // tokens per bar, when many share a pixel
  for (let t = Math.floor(view.from); t < Math.min(map.nTokens, view.to); t += step) {
    let kept = 0, n = 0;
    for (let i = t; i < Math.min(map.nTokens, t + step); ++i) {
      kept += map.keptLayers[i];
      ++n;
    }
    const h = kDepthBars * kept / n / map.nLayers;
    ctx.fillRect(
        Math.max(x(t), x(view.from)), bottom - h, Math.max(0.5, cell * step - (cell > 4 ? 1 : 0)),
        h);
  }
  ctx.globalAlpha = 1;
}

function drawDepthText(ctx, map, view, {x, cell, left, width, rowHeight, ink, bottom}) {
  ctx.fillStyle = ink;
  ctx.font = '11px system-ui, sans-serif';
  ctx.textAlign = 'center';
  ctx.textBaseline = 'alphabetic';
  for (const t of linearTicks(view.from, view.to, Math.max(2, (width - left) / 90))) {
    if (!Number.isInteger(t) || t >= map.nTokens) continue;
    const at = x(t + 0.5);
    ctx.fillText(figure(t), Math.min(width - 14, Math.max(left + 6, at)), kDepthTop - 8);
    ctx.fillRect(at - 0.5, kDepthTop - 5, 1, 4);
  }
  ctx.textAlign = 'left';
  ctx.fillText('layer', 0, kDepthTop - 8);
  ctx.fillText('position of the token in the text', left, 11);
  ctx.textAlign = 'right';
  const every = Math.max(1, Math.ceil(13 / rowHeight));
  for (let l = 0; l < map.nLayers; l += every)
    ctx.fillText(layerLabel(map, l), left - 7, kDepthTop + (l + 0.5) * rowHeight + 4);
  ctx.fillRect(left, bottom, width - left, 1);
  if (cell < kLabelCell) {
    ctx.textAlign = 'left';
    ctx.fillText('layers that keep each token; zoom in to read the tokens', left, bottom + 18);
    return;
  }
  ctx.direction = 'ltr';
  for (let t = Math.max(0, Math.floor(view.from)); t < Math.min(map.nTokens, view.to); ++t) {
    ctx.save();
    ctx.translate(x(t + 0.5) + 4, bottom + 7);
    ctx.rotate(-Math.PI / 2);
    ctx.fillText(oneLine(map.tokens[t], 9), 0, 0);
    ctx.restore();
  }
}
