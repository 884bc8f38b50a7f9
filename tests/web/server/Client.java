import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

/** Sends increments as Java's own client does by default: it offers HTTP/2. URL, key, number. */
class Client {
    public static void main(String[] arguments) throws Exception {
        var client = HttpClient.newHttpClient();
        var json = "{\"counter\":\"java\"}";
        for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
            // with a length, and in chunks
            BodyPublisher body = number % 2 == 0
                ? BodyPublishers.ofString(json)
                : BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(json.getBytes()));
            var request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("Content-Type", "application/json")
                .header("X-API-Key", arguments[1])
                .POST(body).build();
            System.out.println(client.send(request, BodyHandlers.ofString()).statusCode());
        }
    }
}
