// Reads stored tensors by the names of a description and packs them on a backend.

#include "model/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/weight_type.h"

namespace sluice::impl {
namespace {

const StoredTensor& require_shape(const WeightStore& store, const std::string& name,
                                  const Shape& expected) {
  const StoredTensor& tensor = store.require(name);
  if (tensor.shape != expected)
    throw Error(fmt::format("{} is {}, the config implies {}", store.label_of(tensor),
                            tensor.shape.str(), expected.str()),
                "are config and weights from one checkpoint?");
  return tensor;
}

Shape stored_shape(const MatrixPart& part, int64_t n_in) {
  const int64_t n_rows = part.stored_rows(), n_columns = part.stored_columns(n_in);
  return part.transposed ? Shape{n_columns, n_rows} : Shape{n_rows, n_columns};
}

std::vector<float> read_vector(const WeightStore& store, const std::string& name, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  const StoredTensor& tensor = require_shape(store, name, {n});
  expand(tensor, 0, values);
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
    throw Error(store.label_of(tensor) + " holds a number that is not finite",
                "are the weights damaged? fetch or convert them again");
  return values;
}

// A bias may be stored in blocks, which its rows need not begin or end with.
std::vector<float> read_bias(const WeightStore& store, const MatrixPart& part) {
  const StoredTensor& stored = require_shape(store, part.bias, {part.stored_rows()});
  std::vector<float> all(static_cast<size_t>(part.stored_rows()));
  expand(stored, 0, all);
  const auto begin = all.begin() + part.first_row;
  return {begin, begin + part.n_out};
}

// Type of the matrix in memory where `wanted` is asked for. Of a slice of columns, the type that
// the stored matrix gets, if the slice fits it: ranks have no other types than one process where
// they can.
DType type_in_memory(DType wanted, const MatrixPart& part, int64_t n_in) {
  return fitting_weight_type(fitting_weight_type(wanted, part.stored_columns(n_in)), n_in);
}

// One stored tensor of a stack and the rows of the whole that it fills.
struct Slice {
  const StoredTensor* tensor;
  int64_t begin, end;
  int64_t first_row;     // of the tensor, that serves `begin`
  int64_t first_column;  // likewise
  bool transposed;

  bool cuts_columns(int64_t n_in) const { return !transposed && n_in < tensor->shape[1]; }
  // Whether no block lies on both sides of a border between columns.
  bool cuts_between_blocks(int64_t n_in) const {
    const int64_t block = block_size(tensor->dtype).elements;
    return first_column % block == 0 && n_in % block == 0;
  }

  // Rows [first, last) of the whole, n_in columns.
  void read(int64_t first, int64_t last, int64_t n_in, float* out) const {
    const int64_t row = first_row + first - begin, n = last - first;
    if (transposed) return read_transposed(row, n, n_in, out);
    const int64_t width = tensor->shape[1];
    if (n_in == width) return expand(*tensor, row * width, {out, static_cast<size_t>(n * n_in)});
    // Whole blocks around the columns.
    const int64_t block = block_size(tensor->dtype).elements;
    const int64_t from = first_column / block * block,
                  to = (first_column + n_in + block - 1) / block * block;
    std::vector<float> columns(static_cast<size_t>(to - from));
    for (int64_t i = 0; i < n; ++i) {
      expand(*tensor, (row + i) * width + from, columns);
      std::copy_n(columns.data() + (first_column - from), n_in, out + i * n_in);
    }
  }

  // The same of a stored (n_in, n_out) tensor.
  void read_transposed(int64_t row, int64_t n, int64_t n_in, float* out) const {
    std::vector<float> columns(static_cast<size_t>(n));
    for (int64_t k = 0; k < n_in; ++k) {
      expand(*tensor, (first_column + k) * tensor->shape[1] + row, columns);
      for (int64_t i = 0; i < n; ++i) out[i * n_in + k] = columns[static_cast<size_t>(i)];
    }
  }
};

// The rows of slices as they are stored; none where a slice is transposed, or has some columns of
// plain numbers, or cuts a block.
void set_stored(const std::vector<Slice>& slices, MatrixSource& source) {
  const int64_t n_in = source.n_in;
  const auto is_expanded = [n_in](const Slice& slice) {
    return slice.transposed ||
           (slice.cuts_columns(n_in) &&
            (block_size(slice.tensor->dtype).elements == 1 || !slice.cuts_between_blocks(n_in)));
  };
  if (std::any_of(slices.begin(), slices.end(), is_expanded)) return;
  auto copies = std::make_shared<std::vector<std::vector<std::byte>>>();
  for (const Slice& slice : slices) {
    const BlockSize block = block_size(slice.tensor->dtype);
    const int64_t row_bytes = slice.tensor->shape[1] / block.elements * block.bytes;
    const std::byte* rows = slice.tensor->bytes.data() + slice.first_row * row_bytes;
    if (slice.cuts_columns(n_in)) {
      const int64_t n = slice.end - slice.begin, own_bytes = n_in / block.elements * block.bytes;
      const std::byte* from = rows + slice.first_column / block.elements * block.bytes;
      std::vector<std::byte>& copy = copies->emplace_back(static_cast<size_t>(n * own_bytes));
      for (int64_t i = 0; i < n; ++i)
        std::copy_n(from + i * row_bytes, own_bytes, copy.data() + i * own_bytes);
      rows = copy.data();
    }
    source.stored.push_back({slice.begin, slice.end, slice.tensor->dtype, rows});
  }
  if (!copies->empty()) source.owner = std::move(copies);
}

class Loader {
 public:
  Loader(const WeightStore& store, Backend& backend, const WeightType& weights)
      : store_(store), backend_(backend), type_(weights) {}

  std::unique_ptr<LinearWeights> matrix(const MatrixNames& names, int64_t n_in) {
    if (names.empty()) return nullptr;
    WeightType type = type_;
    if (type.type) type.type = type_in_memory(*type.type, names.front(), n_in);
    auto weights = backend_.pack_linear(with_weight_type(matrix_source(store_, names, n_in), type));
    bytes_ += weights->bytes();
    ++n_matrices_;
    if (type.type != type_.type) ++n_other_type_;
    for (const MatrixPart& part : names) store_.release(store_.require(part.weight));
    return weights;
  }

  std::unique_ptr<Table> table(const std::string& name, int64_t n_rows, int64_t width) {
    if (name.empty()) return nullptr;
    const StoredTensor& tensor = require_shape(store_, name, {n_rows, width});
    MatrixSource source;
    source.n_out = n_rows;
    source.n_in = width;
    source.read_rows = [&tensor, width](int64_t begin, int64_t end, float* out) {
      expand(tensor, begin * width, {out, static_cast<size_t>((end - begin) * width)});
    };
    return backend_.make_table(std::move(source));
  }

  Norm norm(const NormNames& names, const ModelSpec& spec, int64_t width) {
    Norm norm;
    norm.kind = spec.norm;
    norm.epsilon = spec.norm_epsilon;
    norm.exists = names.exists;
    const auto load = [&](const std::string& name) {
      if (name.empty()) return Buffer();
      std::vector<float> values = read_vector(store_, name, width);
      if (names.plus_one && name == names.weight)
        for (float& value : values) value += 1;
      Buffer buffer = backend_.allocate(DType::kF32, {width});
      backend_.upload(ConstTensor(values.data(), DType::kF32, {width}), buffer.view());
      return buffer;
    };
    norm.weight = load(names.weight);
    norm.bias = load(names.bias);
    return norm;
  }

  void count(ModelWeights& weights) const {
    weights.bytes = bytes_;
    weights.n_matrices = n_matrices_;
    weights.n_other_type = n_other_type_;
  }

 private:
  const WeightStore& store_;
  Backend& backend_;
  WeightType type_;
  int64_t bytes_ = 0, n_matrices_ = 0, n_other_type_ = 0;
};

// Token types of BERT: any number but none.
int64_t type_rows(const WeightStore& store, const std::string& name) {
  const StoredTensor& tensor = store.require(name);
  if (tensor.shape.rank() != 2 || tensor.shape[0] < 1)
    throw Error(fmt::format("{} is {}, expected a row for each token type", store.label_of(tensor),
                            tensor.shape.str()),
                "are config and weights from one checkpoint?");
  return tensor.shape[0];
}

// Width of what the output matrix takes.
int64_t head_width(const ModelSpec& spec, const WeightNames& names) {
  return names.head_transform.empty() ? spec.d_model : names.head_transform.front().n_out;
}

void load_embedding(const ModelDescription& description, const WeightStore& store, Loader& loader,
                    ModelWeights& weights) {
  const ModelSpec& spec = description.spec;
  const WeightNames& names = description.names;
  weights.token_table = loader.table(names.token_table, spec.vocab, spec.d_embed);
  weights.position_table =
      loader.table(names.position_table, spec.max_positions + spec.position_offset, spec.d_model);
  if (!names.type_table.empty())
    weights.type_table =
        loader.table(names.type_table, type_rows(store, names.type_table), spec.d_model);
  weights.embed_norm = loader.norm(names.embed_norm, spec, spec.d_model);
  weights.project_in = loader.matrix(names.project_in, spec.d_embed);
}

BlockWeights load_block(const ModelDescription& description, int64_t layer, Loader& loader) {
  const ModelSpec& spec = description.spec;
  const LayerNames& n = description.names.layers[static_cast<size_t>(layer)];
  return {.attention_norm = loader.norm(n.attention_norm, spec, spec.d_model),
          .mlp_norm = loader.norm(n.mlp_norm, spec, spec.d_model),
          .query_norm = loader.norm(n.query_norm, spec, spec.head_dim),
          .key_norm = loader.norm(n.key_norm, spec, spec.head_dim),
          .qkv = loader.matrix(n.qkv, spec.d_model),
          .attention_out = loader.matrix(n.attention_out, spec.query_width()),
          .mlp_in = loader.matrix(n.mlp_in, spec.d_model),
          .mlp_out = loader.matrix(n.mlp_out, spec.d_inner),
          .window = spec.window(layer),
          .scale = spec.attention_scale(layer),
          .rotary = spec.rotates(layer),
          .attention_post_norm = loader.norm(n.attention_post_norm, spec, spec.d_model),
          .mlp_post_norm = loader.norm(n.mlp_post_norm, spec, spec.d_model)};
}

void load_head(const ModelDescription& description, Loader& loader, ModelWeights& weights) {
  const ModelSpec& spec = description.spec;
  const WeightNames& names = description.names;
  weights.final_norm = loader.norm(names.final_norm, spec, spec.d_model);
  weights.head_transform = loader.matrix(names.head_transform, spec.d_model);
  const int64_t width = head_width(spec, names);
  weights.head_norm = loader.norm(names.head_norm, spec, width);
  weights.head = loader.matrix(names.head, width);
}

}  // namespace

MatrixSource matrix_source(const WeightStore& store, const MatrixNames& names, int64_t n_in) {
  auto slices = std::make_shared<std::vector<Slice>>();
  MatrixSource source;
  source.n_in = n_in;
  const bool biased = std::any_of(names.begin(), names.end(),
                                  [](const MatrixPart& part) { return !part.bias.empty(); });
  for (const MatrixPart& part : names) {
    SLUICE_CHECK(part.first_row + part.n_out <= part.stored_rows());
    SLUICE_CHECK(part.first_column + n_in <= part.stored_columns(n_in));
    const StoredTensor& tensor = require_shape(store, part.weight, stored_shape(part, n_in));
    if (part.transposed && block_size(tensor.dtype).elements != 1)
      throw Error(part.weight + " is quantised in a layout that cannot be transposed",
                  "convert the weights to F32, F16 or BF16");
    slices->push_back({&tensor, source.n_out, source.n_out + part.n_out, part.first_row,
                       part.first_column, part.transposed});
    source.n_out += part.n_out;
    if (!biased) continue;
    const std::vector<float> bias = part.bias.empty()
                                        ? std::vector<float>(static_cast<size_t>(part.n_out), 0.0f)
                                        : read_bias(store, part);
    source.bias.insert(source.bias.end(), bias.begin(), bias.end());
  }
  set_stored(*slices, source);
  source.read_rows = [slices, n_in](int64_t begin, int64_t end, float* out) {
    for (const Slice& slice : *slices) {
      const int64_t first = std::max(begin, slice.begin), last = std::min(end, slice.end);
      if (first < last) slice.read(first, last, n_in, out + (first - begin) * n_in);
    }
  };
  return source;
}

BlockShape block_shape(const ModelSpec& spec) {
  return {.kind = spec.block,
          .d_model = spec.d_model,
          .n_heads = spec.n_heads,
          .n_kv_heads = spec.n_kv_heads,
          .head_dim = spec.head_dim,
          .d_inner = spec.d_inner,
          .activation = spec.activation,
          .gated = spec.gated,
          .causal = spec.causal,
          .rotary = spec.position == PositionKind::kRotary,
          .rotary_style = spec.rotary.style,
          .attention_cap = spec.attention_cap};
}

ModelWeights load_weights(const ModelDescription& description, const WeightStore& store,
                          Backend& backend, const WeightOptions& options) {
  const ModelSpec& spec = description.spec;
  const Stage* stage = options.stage;
  const LayerRange range = stage != nullptr ? stage->layers() : LayerRange{0, spec.n_layers};
  Loader loader(store, backend, options.weights);
  ModelWeights weights;
  weights.blocks.resize(static_cast<size_t>(spec.n_layers));
  if (stage == nullptr || stage->first()) load_embedding(description, store, loader, weights);
  for (int64_t layer = range.begin; layer < range.end; ++layer) {
    weights.blocks[static_cast<size_t>(layer)] = load_block(description, layer, loader);
    if (options.progress)
      options.progress(static_cast<double>(layer + 1 - range.begin) /
                       static_cast<double>(range.size()));
  }
  if (stage == nullptr || stage->last()) load_head(description, loader, weights);
  loader.count(weights);
  return weights;
}

namespace {

constexpr int64_t kBeforeLayers = -1;  // the place of what embeds

// Calls each(part, n_in, place) for every stored tensor that is a matrix of the model; place: its
// layer, kBeforeLayers, or n_layers for the head.
template <typename Each>
void for_matrix_parts(const ModelDescription& description, Each&& each) {
  const ModelSpec& spec = description.spec;
  const WeightNames& names = description.names;
  int64_t place = kBeforeLayers;
  const auto add = [&](const MatrixNames& matrix, int64_t n_in) {
    for (const MatrixPart& part : matrix) each(part, n_in, place);
  };
  add(names.project_in, spec.d_embed);
  for (const LayerNames& layer : names.layers) {
    ++place;
    add(layer.qkv, spec.d_model);
    add(layer.attention_out, spec.query_width());
    add(layer.mlp_in, spec.d_model);
    add(layer.mlp_out, spec.d_inner);
  }
  ++place;
  add(names.head_transform, spec.d_model);
  add(names.head, head_width(spec, names));
}

}  // namespace

void check_matrix_shapes(const ModelDescription& description, const WeightStore& store) {
  for_matrix_parts(description, [&](const MatrixPart& part, int64_t n_in, int64_t) {
    if (store.find(part.weight) != nullptr)
      require_shape(store, part.weight, stored_shape(part, n_in));
  });
}

int64_t packed_bytes(const ModelDescription& description, DType dtype) {
  int64_t elements = 0;
  for_matrix_parts(description, [&](const MatrixPart& part, int64_t n_in, int64_t) {
    elements = checked_add(elements, checked_mul(part.n_out, n_in));
  });
  return checked_mul(elements, element_bytes(dtype));
}

DividedBytes divided_bytes(const ModelDescription& description, const WeightStore& store,
                           const PackedType& type) {
  const int64_t n_layers = description.spec.n_layers;
  DividedBytes bytes;
  bytes.layers.resize(static_cast<size_t>(n_layers));
  for_matrix_parts(description, [&](const MatrixPart& part, int64_t n_in, int64_t place) {
    const StoredTensor* tensor = store.find(part.weight);
    const DType stored = tensor != nullptr ? tensor->dtype : type.compute;
    BlockSize block = block_size(type.weights ? type_in_memory(*type.weights, part, n_in) : stored);
    if (block.elements == 1 || n_in % block.elements != 0)
      block = {.elements = 1, .bytes = element_bytes(type.compute)};
    int64_t& sum = place == kBeforeLayers ? bytes.first
                   : place == n_layers    ? bytes.last
                                          : bytes.layers[static_cast<size_t>(place)];
    sum = checked_add(sum, checked_mul(part.n_out, n_in / block.elements * block.bytes));
  });
  return bytes;
}

int64_t packed_bytes_as_stored(const ModelDescription& description, const WeightStore& store,
                               DType dtype) {
  const DividedBytes divided = divided_bytes(description, store, {.compute = dtype});
  int64_t bytes = checked_add(divided.first, divided.last);
  for (const int64_t layer : divided.layers) bytes = checked_add(bytes, layer);
  return bytes;
}

}  // namespace sluice::impl
