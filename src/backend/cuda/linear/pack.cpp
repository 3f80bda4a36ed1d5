#include "backend/cuda/linear/pack.h"

#include <algorithm>

#include "core/threads.h"

namespace sluice::impl::cuda::linear {
namespace {

struct Piece {
  Piece(const std::shared_ptr<Context>& context, int64_t elements)
      : device(context, elements), pinned(elements * static_cast<int64_t>(sizeof(float))) {}
  DeviceArray<float> device;  // outlives the copy into it, for which `pinned` waits
  PinnedPiece pinned;
};

}  // namespace

void stream_rows(const std::shared_ptr<Context>& context, const MatrixSource& source,
                 const TakeRows& take) {
  if (source.n_out == 0 || source.n_in == 0) return;
  const auto row_bytes = checked_mul(source.n_in, sizeof(float));
  const int64_t n = std::clamp<int64_t>(kPieceBytes / row_bytes, 1, source.n_out);
  Piece pieces[2] = {{context, n * source.n_in}, {context, n * source.n_in}};
  for (int64_t first = 0, i = 0; first < source.n_out; first += n, ++i) {
    const Piece& piece = pieces[i % 2];
    const int64_t count = std::min(n, source.n_out - first);
    check(cudaEventSynchronize(piece.pinned.sent.get()), "copy to the device");
    auto* host = reinterpret_cast<float*>(piece.pinned.host.data());
    parallel_for(count, 16, [&](int64_t begin, int64_t end) {
      source.read_rows(first + begin, first + end, host + begin * source.n_in);
    });
    check(cudaMemcpyAsync(piece.device.data(), host, static_cast<size_t>(count * row_bytes),
                          cudaMemcpyHostToDevice, context->stream()),
          "copy to the device");
    check(cudaEventRecord(piece.pinned.sent.get(), context->stream()), "copy to the device");
    take(first, ConstTensor(piece.device.data(), DType::kF32, {count, source.n_in}, Device::kCuda));
  }
  context->synchronize();
}

DeviceMatrix pack_matrix(const std::shared_ptr<Context>& context, const MatrixSource& source,
                         DType dtype) {
  DeviceMatrix matrix(context, dtype, source.n_out, source.n_in);
  stream_rows(context, source, [&](int64_t first, const ConstTensor& rows) {
    elementwise::convert(*context, rows, matrix.rows.rows_from(first, rows.rows()));
  });
  return matrix;
}

// Checkpoints in bf16 have tables in bf16; in f32 they would only take twice the memory.
std::unique_ptr<elementwise::DeviceTable> pack_table(const std::shared_ptr<Context>& context,
                                                     const MatrixSource& source) {
  auto table = std::make_unique<elementwise::DeviceTable>();
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    table->memory = DeviceArray<std::byte>(
        context, checked_mul(checked_mul(source.n_out, source.n_in), element_bytes(dtype)));
    table->rows = Tensor(table->memory.data(), dtype, {source.n_out, source.n_in}, Device::kCuda);
    const int32_t none = 0;
    const DeviceArray<int32_t> inexact(context, std::span(&none, 1));
    stream_rows(context, source, [&](int64_t first, const ConstTensor& rows) {
      if (dtype == DType::kBF16) elementwise::find_inexact(*context, rows, inexact.data());
      elementwise::convert(*context, rows, table->rows.rows_from(first, rows.rows()));
    });
    int32_t found = 0;
    context->fetch(inexact.data(), &found, sizeof found);
    if (found == 0) break;
  }
  return table;
}

}  // namespace sluice::impl::cuda::linear
